// Shows the serial console of a VM with xterm.js, or its screen with noVNC.

const place = document.getElementById("stream");
const tools = document.getElementById("stream-tools");
const state = document.getElementById("stream-state");
const toggle = document.getElementById("stream-toggle");
const isConsole = place.dataset.kind === "console";

// Code with which the server closes a connection whose session has ended, and the first code of its own.
const SESSION_ENDED = 4401;
const FIRST_OWN_CODE = 4000;
// Messages of this size are accepted by the server.
const MAX_BLOCK = 16384;

let socket = null;
let hasLeft = false;
let isSignedOut = false;

function showState(text, isOpen) {
  state.textContent = text;
  state.dataset.state = isOpen ? "open" : "closed";
  toggle.textContent = socket ? "Disconnect" : isSignedOut ? "Sign in" : "Connect again";
}

// Opens a connection. `attach` is called when the VM is connected, and `detach` when it is disconnected.
function connect(attach, detach) {
  const url = new URL(place.dataset.path, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const opened = new WebSocket(url);
  opened.binaryType = "arraybuffer";
  socket = opened;
  hasLeft = false;
  showState("Connecting", false);
  // The first message reports that the VM is connected.
  opened.addEventListener(
    "message",
    () => {
      showState("Connected", true);
      attach(opened);
    },
    { once: true },
  );
  opened.addEventListener("close", (event) => {
    if (socket === opened) socket = null;
    isSignedOut = event.code === SESSION_ENDED;
    const hasReason = event.code >= FIRST_OWN_CODE && event.reason;
    const lost = "The connection is lost: the console, the network or your session has ended.";
    showState(hasLeft ? "You have disconnected." : hasReason ? event.reason : lost, false);
    detach();
  });
}

function disconnect() {
  hasLeft = true;
  socket?.close();
}

// xterm.js creates elements with styles and attributes with styles, which the Content-Security-Policy refuses. Constructed
// style sheets and the property `style` are permitted, so that the policy of this page needs no exception.
function applyStyles() {
  const create = document.createElement.bind(document);

  function createSheet() {
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    const element = create("template");
    Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text) });
    return element;
  }

  function setAttribute(name, value) {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
  }

  document.createElement = (name, options) => {
    if (name === "style") return createSheet();
    const element = create(name, options);
    if (name === "span") element.setAttribute = setAttribute;
    return element;
  };
}

// The colours of the page. Those of the VM get enough contrast from xterm.js.
function readTheme() {
  const { backgroundColor, color } = getComputedStyle(place);
  return {
    background: backgroundColor,
    foreground: color,
    cursor: color,
    cursorAccent: backgroundColor,
    selectionBackground: "#4f8fc080",
    scrollbarSliderBackground: "#80808080",
  };
}

async function startConsole() {
  applyStyles();
  const [{ Terminal }, { FitAddon }] = await Promise.all([import(place.dataset.xterm), import(place.dataset.fit)]);
  const terminal = new Terminal({
    screenReaderMode: true,
    minimumContrastRatio: 4.5,
    scrollback: 5000,
    theme: readTheme(),
    // Links that a VM shows lead to any site.
    linkHandler: { activate: () => {} },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(place);
  const size = document.getElementById("stream-size");
  new ResizeObserver(() => {
    fit.fit();
    size.textContent = `The serial console does not know the size of the window: run "stty cols ${terminal.cols} rows ${terminal.rows}" in the VM.`;
  }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    terminal.options.theme = readTheme();
  });

  function send(bytes) {
    for (let at = 0; at < bytes.length && socket?.readyState === WebSocket.OPEN; at += MAX_BLOCK) {
      socket.send(bytes.subarray(at, at + MAX_BLOCK));
    }
  }

  const encoder = new TextEncoder();
  terminal.onData((text) => send(encoder.encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (char) => char.charCodeAt(0))));
  const attach = (opened) => {
    opened.addEventListener("message", (event) => {
      if (event.data instanceof ArrayBuffer) terminal.write(new Uint8Array(event.data));
    });
    terminal.options.disableStdin = false;
    terminal.focus();
  };
  const detach = () => {
    terminal.options.disableStdin = true;
  };
  return () => connect(attach, detach);
}

async function startScreen() {
  const { default: RFB } = await import(place.dataset.novnc);
  const reset = document.getElementById("stream-reset");
  const full = document.getElementById("stream-full");
  let screen = null;
  reset.addEventListener("click", () => {
    screen?.sendCtrlAltDel();
    screen?.focus();
  });
  full.addEventListener("click", () => {
    place.requestFullscreen().then(() => screen?.focus());
  });
  const attach = (opened) => {
    screen = new RFB(place, opened, { shared: true });
    screen.scaleViewport = true;
    screen.background = getComputedStyle(place).backgroundColor;
    const canvas = place.querySelector("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${place.getAttribute("aria-label")}: all keys are sent to the VM`);
    screen.addEventListener("connect", () => {
      place.dataset.connected = "true";
      screen.focus();
    });
    screen.addEventListener("credentialsrequired", () => {
      showState("The VNC server requires a password, which this page cannot send.", false);
    });
  };
  const detach = () => {
    delete place.dataset.connected;
    screen = null;
  };
  return () => connect(attach, detach);
}

// All keys are sent to the VM, also those that usually move the focus.
place.addEventListener(
  "keydown",
  (event) => {
    if (event.key !== "Backspace" || !event.ctrlKey || !event.shiftKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    toggle.focus();
    // noVNC releases the keys in the VM that are pressed when the window loses the focus.
    window.dispatchEvent(new Event("blur"));
  },
  { capture: true },
);

for (const element of [tools, place, document.getElementById("stream-keys")]) element.hidden = false;
const start = await (isConsole ? startConsole() : startScreen());
toggle.addEventListener("click", () => {
  if (socket) disconnect();
  else if (isSignedOut) location.reload();
  else start();
});
window.addEventListener("pagehide", disconnect);
start();
