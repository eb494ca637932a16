// Filters hosts, applies changes to open pages, and moves the focus with the keyboard. Without this script, pages show the
// same content.
"use strict";

(() => {
  const MIN_DELAY = 1000;
  const MAX_DELAY = 60000;
  const live = document.getElementById("live");
  const stop = document.getElementById("stop");

  function showLive(text, state) {
    if (!live || live.textContent === text) return;
    live.textContent = text;
    live.dataset.state = state;
  }

  function showGone(isGone) {
    const gone = document.getElementById("gone");
    if (gone) gone.hidden = !isGone;
  }

  // Amounts of bytes are shown as the server shows them: three digits and a binary unit.
  function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (unit < units.length - 1 && count >= 2 ** (10 * (unit + 1))) unit += 1;
    if (unit === 0) return `${count} B`;
    const tenths = Math.floor((count * 10) / 2 ** (10 * unit) + 0.5);
    const isWhole = tenths % 10 === 0 || tenths >= 1000;
    const text = isWhole ? `${Math.floor((tenths + 5) / 10)}` : `${Math.floor(tenths / 10)}.${tenths % 10}`;
    return `${text} ${units[unit]}`;
  }

  function setText(id, text) {
    const element = document.getElementById(id);
    if (element) element.textContent = text;
  }

  // Shows the sum of an attribute of hosts, such as "12 48" for 12 of 48.
  function showSum(id, label, hosts, attribute, format) {
    const element = document.getElementById(id);
    const meter = element?.querySelector("meter");
    if (!meter) return;
    const amounts = hosts.filter((host) => host.dataset[attribute]).map((host) => host.dataset[attribute].split(" ").map(Number));
    const used = amounts.reduce((sum, one) => sum + one[0], 0);
    const total = amounts.reduce((sum, one) => sum + one[1], 0);
    const text = `${format(used)} of ${format(total)}`;
    meter.max = total;
    meter.value = used;
    meter.setAttribute("aria-label", `${label}: ${text}`);
    element.replaceChildren(meter, ` ${text}`);
    element.parentElement.hidden = amounts.length === 0;
  }

  // Hides the hosts that do not match the form, and counts the others. Hosts have their words in an attribute, such as
  // "a state=ready".
  function filterHosts() {
    const form = document.querySelector("form[data-local]");
    if (!form) return;
    const parts = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const words = [...form.querySelectorAll("select")].map((select) => select.value).filter(Boolean);
    const shown = [];
    for (const host of document.querySelectorAll("li.host")) {
      const text = host.dataset.words;
      const spaced = ` ${text} `;
      const isShown = parts.every((part) => text.includes(part)) && words.every((word) => spaced.includes(` ${word} `));
      host.hidden = !isShown;
      if (isShown) shown.push(host);
    }
    for (const section of document.querySelectorAll("#view > section")) {
      section.hidden = !section.querySelector("li.host:not([hidden])");
    }
    setText("counter-hosts", String(shown.length));
    for (const severity of ["ok", "warning", "failure"]) {
      setText(`counter-${severity}`, String(shown.filter((host) => host.dataset.severity === severity).length));
    }
    showSum("counter-cpus", "Pinned CPUs", shown, "cpus", String);
    showSum("counter-pages", "Huge pages", shown, "pages", bytes);
    const empty = document.getElementById("no-match");
    if (empty) empty.hidden = shown.length > 0 || !document.querySelector("li.host");
    announce();
  }

  // Announces the number of rows or hosts when it has changed. The view itself is replaced, and so not announced.
  let announced = null;

  function announce() {
    const hosts = document.getElementById("counter-hosts");
    const text = hosts ? `Hosts: ${hosts.textContent}` : document.querySelector("#view .count")?.textContent;
    if (!text || text === announced) return;
    if (announced !== null) setText("announcement", text);
    announced = text;
  }

  const localForm = document.querySelector("form[data-local]");
  if (localForm) {
    localForm.addEventListener("input", filterHosts);
    localForm.addEventListener("submit", (event) => {
      event.preventDefault();
      filterHosts();
    });
  }

  // Elements of a region that are alike, such as all links to one host.
  function alike(region, tag, href) {
    return [...region.querySelectorAll(tag)].filter((one) => one.getAttribute("href") === href);
  }

  // Describes the focus within an element that is replaced: the closest element with an id, and the link in it.
  function describeFocus(root) {
    const at = document.activeElement;
    if (!at || !root.contains(at)) return null;
    const region = at.closest("[id]");
    if (!region || !root.contains(region)) return null;
    const [tag, href] = [at.localName, at.getAttribute("href")];
    const index = region === at ? -1 : alike(region, tag, href).indexOf(at);
    return { id: region.id, tag, href, index };
  }

  function restoreFocus(focus) {
    if (!focus) return;
    const region = document.getElementById(focus.id) ?? document.getElementById("view");
    if (!region) return;
    const found = focus.index < 0 ? [region] : alike(region, focus.tag, focus.href);
    const target = found[focus.index] ?? found[0] ?? document.getElementById("content");
    if (target && target !== document.activeElement) target.focus({ preventScroll: true });
  }

  // The focus, the positions of scrolled tables, and the open details survive when the view is replaced.
  let kept = null;

  document.addEventListener("htmx:beforeSwap", (event) => {
    const view = document.getElementById("view");
    if (!view || event.detail.target !== view || !event.detail.shouldSwap) return;
    kept = {
      focus: describeFocus(view),
      scrolled: [...view.querySelectorAll(".scroll[id]")].map((one) => [one.id, one.scrollLeft]),
      open: [...view.querySelectorAll("details[id][open]")].map((one) => one.id),
    };
  });

  function restoreView() {
    if (!kept) return;
    for (const [id, left] of kept.scrolled) {
      const region = document.getElementById(id);
      if (region) region.scrollLeft = left;
    }
    for (const id of kept.open) {
      document.getElementById(id)?.setAttribute("open", "");
    }
    restoreFocus(kept.focus);
  }

  document.addEventListener("htmx:afterSwap", restoreView);
  document.addEventListener("htmx:afterSettle", () => {
    restoreView();
    kept = null;
    refreshDelay = MIN_DELAY;
    showGone(false);
    if (source) showState();
    filterHosts();
    announce();
  });

  // A refresh that fails is tried again; a page whose object is gone says so.
  let refreshRetry = 0;
  let refreshDelay = MIN_DELAY;

  function refresh() {
    clearTimeout(refreshRetry);
    const view = document.getElementById("view");
    if (view && window.htmx) window.htmx.trigger(view, "refresh");
  }

  function retryRefresh(event) {
    if (event.detail.elt?.id !== "view") return;
    if (event.detail.xhr?.status === 404) return showGone(true);
    showLive("Outdated", "closed");
    clearTimeout(refreshRetry);
    refreshRetry = setTimeout(refresh, refreshDelay * (0.5 + Math.random()));
    refreshDelay = Math.min(refreshDelay * 2, MAX_DELAY);
  }

  document.addEventListener("htmx:responseError", retryRefresh);
  document.addEventListener("htmx:sendError", retryRefresh);

  function replaceElement(message) {
    const { id, html } = JSON.parse(message);
    const old = document.getElementById(id);
    if (!old) return refresh();
    const parsed = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
    if (!parsed) return;
    const focus = describeFocus(old);
    old.replaceWith(parsed);
    restoreFocus(focus);
    filterHosts();
  }

  // Browsers permit few connections to one server, so only the visible page has one.
  let source = null;
  let state = "Not live";
  let connectRetry = 0;
  let connectDelay = MIN_DELAY;

  function showState() {
    showLive(state, state === "Live" ? "open" : "closed");
  }

  function isStopped() {
    return sessionStorage.getItem("berth-stopped") === "1";
  }

  function connect() {
    clearTimeout(connectRetry);
    const page = document.body.dataset.live;
    if (!page || source || document.hidden || isStopped()) return;
    source = new EventSource(`/live?${new URLSearchParams({ page: location.pathname })}`);
    source.addEventListener("open", () => {
      connectDelay = MIN_DELAY;
    });
    source.addEventListener("state", (event) => {
      state = event.data;
      showState();
    });
    source.addEventListener("error", () => {
      showLive("Not live", "closed");
      // The browser connects again by itself, unless the server has refused the stream.
      if (source?.readyState !== EventSource.CLOSED) return;
      source = null;
      connectRetry = setTimeout(connect, connectDelay * (0.5 + Math.random()));
      connectDelay = Math.min(connectDelay * 2, MAX_DELAY);
      // If the session has ended, the response leads to the sign-in.
      refresh();
    });
    source.addEventListener("refresh", refresh);
    source.addEventListener("gone", () => showGone(true));
    source.addEventListener("replace", (event) => replaceElement(event.data));
    source.addEventListener("ended", () => location.reload());
  }

  function disconnect() {
    clearTimeout(connectRetry);
    source?.close();
    source = null;
    showLive(isStopped() ? "Stopped" : "Not live", "closed");
  }

  function showStop() {
    if (!stop || !document.body.dataset.live) return;
    stop.hidden = false;
    stop.setAttribute("aria-pressed", String(isStopped()));
  }

  stop?.addEventListener("click", () => {
    if (isStopped()) {
      sessionStorage.removeItem("berth-stopped");
      connect();
    } else {
      sessionStorage.setItem("berth-stopped", "1");
      disconnect();
    }
    showStop();
  });

  // The server sends a refresh when the page connects.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      disconnect();
    } else {
      connect();
    }
  });
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", connect);

  // Arrow keys move between the hosts of the map.
  function moveFocus(event, step) {
    const links = [...document.querySelectorAll("li.host:not([hidden]) > a")];
    const index = links.indexOf(document.activeElement);
    if (index < 0) return;
    const next = links[Math.min(Math.max(index + step, 0), links.length - 1)];
    next.focus();
    event.preventDefault();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight" || event.key === "ArrowDown") moveFocus(event, 1);
    if (event.key === "ArrowLeft" || event.key === "ArrowUp") moveFocus(event, -1);
  });

  filterHosts();
  announce();
  showStop();
  if (isStopped()) showLive("Stopped", "closed");
  connect();
})();
