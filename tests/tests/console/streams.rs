//! Serial console and screen of a VM.

use berth_tests::browser::Browser;
use berth_tests::cluster::ADMIN_TOKEN;
use fantoccini::key::Key;
use serde_json::{Value, json};

use crate::framebuffer::SIZE;
use crate::guests::Guests;
use crate::{Console, WIDTHS, assert_pages_accessible, start_browser};

const MACHINE: &str = "/vms/cluster-bank/bank-web";
const CONSOLE: &str = "/vms/cluster-bank/bank-web/console";
const SCREEN: &str = "/vms/cluster-bank/bank-web/screen";
/// Keys that move the focus from the VM to the page.
const LEAVE: [Key; 3] = [Key::Control, Key::Shift, Key::Backspace];

pub(crate) fn consoles_and_screens_are_connected(console: &Console, guests: &Guests) {
    let browser = start_browser(WIDTHS[1], true);
    console.sign_in(&browser, ADMIN_TOKEN);
    serial_console_is_connected(console, &browser, guests);
    screen_is_connected(console, &browser, guests);
    stream_pages_are_accessible(console, &browser);
    other_sites_cannot_open_streams(console, &browser);
    pages_without_scripts_name_the_command(console);
    let log = console.plane.log("console").unwrap();
    for (text, kind) in
        [("audit: opened a stream", "console"), ("audit: closed a stream", "screen")]
    {
        let is_logged = |line: &str| {
            line.contains(text)
                && line.contains("machine=cluster-bank/bank-web")
                && line.contains(&format!("kind={kind}"))
        };
        assert!(log.lines().any(is_logged), "{text} {kind}: {log}");
    }
    assert!(!log.contains("hello"), "the log has the input of a user: {log}");
}

/// A user without the permission sees no links, and the reason of the API server.
pub(crate) fn user_without_permission_is_refused(console: &Console, browser: &Browser) {
    console.open(browser, MACHINE);
    assert!(!browser.is_visible(".links").unwrap());
    for path in [CONSOLE, SCREEN] {
        console.open(browser, path);
        wait_for_state(browser, "You have no permission to open it");
        assert_eq!(browser.text("#stream-toggle").unwrap(), "Connect again");
    }
}

fn wait_for_state(browser: &Browser, state: &str) {
    browser.wait(state, |browser| Ok(browser.text("#stream-state")?.contains(state))).unwrap();
}

/// Returns the text of the terminal that screen readers get, which is also the text that is shown.
fn terminal_text(browser: &Browser) -> String {
    let script = "return document.querySelector('.xterm-accessibility-tree')?.textContent ?? '';";
    browser.run(script, Vec::new()).unwrap().as_str().unwrap_or_default().replace('\u{a0}', " ")
}

fn focused_id(browser: &Browser) -> Value {
    browser.run("return document.activeElement.id;", Vec::new()).unwrap()
}

/// Returns what the Content-Security-Policy has refused in this page.
fn violations(browser: &Browser) -> Value {
    let script = "const done = arguments[0]; const found = []; \
        const add = (reports) => found.push(...reports.map((one) => `${one.body.effectiveDirective} ${one.body.blockedURL}`)); \
        new ReportingObserver(add, {types: ['csp-violation'], buffered: true}).observe(); \
        setTimeout(() => done(found), 300);";
    browser.run_async(script, Vec::new()).unwrap()
}

fn serial_console_is_connected(console: &Console, browser: &Browser, guests: &Guests) {
    console.open(browser, MACHINE);
    browser.click(".links li:first-child a").unwrap();
    wait_for_state(browser, "Connected");
    assert!(browser.url().unwrap().ends_with(CONSOLE));
    let shows = |text: &'static str| {
        move |browser: &Browser| Ok::<_, anyhow::Error>(terminal_text(browser).contains(text))
    };
    browser.wait("the VM greets", shows("bank-web login:")).unwrap();
    // The terminal has the focus.
    browser.type_text("hello").unwrap();
    browser.wait("the VM answers", shows("HELLO")).unwrap();
    assert_eq!(guests.received(|received| received.typed.clone()), "hello");
    // Styles of xterm.js apply, and the policy has refused none of them.
    let style = "const row = document.querySelector('.xterm-rows span'); return getComputedStyle(row).display;";
    assert_eq!(browser.run(style, Vec::new()).unwrap(), json!("inline-block"));
    // The red text has a colour that differs from that of xterm.js, because it has more contrast.
    let color = "return document.querySelector('.xterm-rows .xterm-bold').style.color;";
    let color = browser.run(color, Vec::new()).unwrap();
    assert!(color.as_str().unwrap_or_default().starts_with("rgb("), "{color}");
    assert_eq!(violations(browser), json!([]));
    // Tab is a key of the VM; the documented keys lead out of it.
    browser.press(Key::Tab).unwrap();
    browser.press_together(&LEAVE).unwrap();
    assert_eq!(focused_id(browser), json!("stream-toggle"));
    assert_eq!(guests.received(|received| received.typed.clone()), "hello\t");
    browser.press(Key::Enter).unwrap();
    wait_for_state(browser, "You have disconnected");
    browser.press(Key::Enter).unwrap();
    wait_for_state(browser, "Connected");
    // The VM ends the stream.
    browser.type_text("bye").unwrap();
    wait_for_state(browser, "The connection ended: the VM was stopped or restarted");
    assert_eq!(browser.text("#stream-toggle").unwrap(), "Connect again");
    console.open(browser, "/vms/cluster-shop/shop-web/console");
    wait_for_state(browser, "There is no running VM with this name");
}

fn screen_is_connected(console: &Console, browser: &Browser, guests: &Guests) {
    console.open(browser, MACHINE);
    browser.click(".links li:last-child a").unwrap();
    let is_connected = |browser: &Browser| browser.is_visible("#stream[data-connected] canvas");
    browser.wait("noVNC is connected", is_connected).unwrap();
    let pixel = "const canvas = document.querySelector('#stream canvas'); \
        return [canvas.width, canvas.height, ...canvas.getContext('2d').getImageData(9, 9, 1, 1).data];";
    let expected = json!([SIZE.0, SIZE.1, 0, 0, 255, 255]);
    browser
        .wait("the screen is blue", |browser| Ok(browser.run(pixel, Vec::new())? == expected))
        .unwrap();
    assert_eq!(violations(browser), json!([]));
    let has = |key: (u32, bool)| {
        move |_: &Browser| {
            Ok::<_, anyhow::Error>(guests.received(|received| received.keys.contains(&key)))
        }
    };
    browser.type_text("a").unwrap();
    browser.wait("the VM receives a key", has((0x61, true))).unwrap();
    browser.click("#stream-reset").unwrap();
    browser.wait("the VM receives Ctrl-Alt-Del", has((0xffff, true))).unwrap();
    browser.press_together(&LEAVE).unwrap();
    assert_eq!(focused_id(browser), json!("stream-toggle"));
    // Control and Shift are not left pressed in the VM.
    browser.wait("Shift is released", has((0xffe1, false))).unwrap();
    browser.wait("Control is released", has((0xffe3, false))).unwrap();
    browser.press(Key::Enter).unwrap();
    wait_for_state(browser, "You have disconnected");
}

fn stream_pages_are_accessible(console: &Console, browser: &Browser) {
    let connected = |browser: &Browser| wait_for_state(browser, "Connected");
    assert_pages_accessible(console, browser, &[CONSOLE, SCREEN], connected);
}

fn other_sites_cannot_open_streams(console: &Console, browser: &Browser) {
    let cookie = format!("{}={}", console.cookie, browser.cookie(&console.cookie).unwrap());
    let handshake = [
        "--max-time",
        "20",
        "-H",
        "Connection: Upgrade",
        "-H",
        "Upgrade: websocket",
        "-H",
        "Sec-WebSocket-Version: 13",
        "-H",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ];
    let own = format!("Origin: {}", console.url);
    let foreign = ["-b", cookie.as_str(), "-H", "Origin: http://evil.example"];
    for (options, code) in
        [(&foreign[..], 403), (&["-b", cookie.as_str()], 403), (&["-H", own.as_str()], 401)]
    {
        let options = [&handshake[..], options].concat();
        for path in [CONSOLE, SCREEN] {
            let (found, answer) = console.curl(&format!("{path}/stream"), &options);
            assert_eq!(found, code, "{path}: {answer}");
        }
    }
}

fn pages_without_scripts_name_the_command(console: &Console) {
    let browser = start_browser(WIDTHS[1], false);
    console.sign_in(&browser, ADMIN_TOKEN);
    for (path, command) in [(CONSOLE, "console"), (SCREEN, "vnc")] {
        console.open(&browser, path);
        let text = browser.text("main").unwrap();
        assert!(text.contains("This page needs JavaScript"), "{text}");
        assert!(text.contains(&format!("kubectl berth {command} cluster-bank/bank-web")), "{text}");
        assert!(!browser.is_visible("#stream").unwrap());
    }
}
