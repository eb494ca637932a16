// Filters hosts, applies changes to open pages, and moves the focus with the keyboard. Without this script, pages show the
// same content.
"use strict";

(() => {
  const live = document.getElementById("live");

  function showLive(text, state) {
    if (!live) return;
    live.textContent = text;
    live.dataset.state = state;
  }

  // Hides the hosts that do not match the form. Hosts have their words in an attribute, such as "a state=ready".
  function filterHosts() {
    const form = document.querySelector("form[data-local]");
    if (!form) return;
    const parts = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const words = [...form.querySelectorAll("select")].map((select) => select.value).filter(Boolean);
    let count = 0;
    for (const host of document.querySelectorAll("li.host")) {
      const text = host.dataset.words;
      const spaced = ` ${text} `;
      const isShown = parts.every((part) => text.includes(part)) && words.every((word) => spaced.includes(` ${word} `));
      host.hidden = !isShown;
      if (isShown) count += 1;
    }
    for (const section of document.querySelectorAll("#view > section")) {
      section.hidden = !section.querySelector("li.host:not([hidden])");
    }
    const total = document.getElementById("host-count");
    if (total) total.textContent = String(count);
    const empty = document.getElementById("no-match");
    if (empty) empty.hidden = count > 0;
  }

  const localForm = document.querySelector("form[data-local]");
  if (localForm) {
    localForm.addEventListener("input", filterHosts);
    localForm.addEventListener("submit", (event) => {
      event.preventDefault();
      filterHosts();
    });
  }

  function refresh() {
    const view = document.getElementById("view");
    if (view && window.htmx) window.htmx.trigger(view, "refresh");
  }

  function replaceElement(message) {
    const { id, html } = JSON.parse(message);
    const old = document.getElementById(id);
    if (!old) return refresh();
    const parsed = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
    if (!parsed) return;
    const hadFocus = old.contains(document.activeElement);
    old.replaceWith(parsed);
    if (hadFocus) parsed.querySelector("a")?.focus();
    filterHosts();
  }

  // Browsers permit few connections to one server, so only the visible page has one.
  let source = null;

  function connect() {
    const page = document.body.dataset.live;
    if (!page || source || document.hidden) return;
    source = new EventSource(`/live?${new URLSearchParams({ page: location.pathname })}`);
    source.addEventListener("open", () => showLive("Live", "open"));
    source.addEventListener("error", () => showLive("Not live", "closed"));
    source.addEventListener("refresh", refresh);
    source.addEventListener("replace", (event) => replaceElement(event.data));
    source.addEventListener("ended", () => location.reload());
  }

  function disconnect() {
    source?.close();
    source = null;
    showLive("Not live", "closed");
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      disconnect();
    } else {
      connect();
      refresh();
    }
  });
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", connect);
  document.addEventListener("htmx:afterSettle", filterHosts);

  // Arrow keys move between the hosts of the map; "/" moves to the filter.
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
    const isText = event.target.closest?.("input, textarea, select");
    if (event.key === "/" && !isText) {
      const filter = document.getElementById("q");
      if (filter) {
        filter.focus();
        event.preventDefault();
      }
    }
  });

  filterHosts();
  connect();
})();
