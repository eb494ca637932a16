//! Tests the web console in a real browser, with a real API server.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run programs and read files, and fail by panicking"
)]

#[path = "console/framebuffer.rs"]
mod framebuffer;
#[path = "console/guests.rs"]
mod guests;
#[path = "console/objects.rs"]
mod objects;
#[path = "console/streams.rs"]
mod streams;

use std::fs::File;
use std::io::Read as _;
use std::process::Command;
use std::time::Duration;

use berth_tests::browser::{Browser, BrowserOptions};
use berth_tests::cluster::{ADMIN_TOKEN, ControlPlane, ControlPlaneOptions};
use berth_tests::console::ConsoleProcess;
use berth_tests::skip::skip;
use fantoccini::key::Key;
use flate2::read::GzDecoder;
use guests::Guests;
use objects::{
    HOSTILE, HOSTILE_TEXTS, USUAL_TEXTS, create_objects, create_racks, create_tenant_user, patch,
};
use serde_json::{Value, json};
use streams::{consoles_and_screens_are_connected, user_without_permission_is_refused};

/// Time limit for the console to list all objects.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Narrow and wide window, in pixels.
const WIDTHS: [u32; 2] = [375, 1440];
/// Every page of an administrator, with a text that it shows.
const PAGES: [(&str, &str); 7] = [
    ("/", "rack2-a"),
    ("/hosts/rack1-a", "AMD EPYC 7443"),
    ("/tenants", "shop"),
    ("/tenants/bank", "cluster-bank"),
    ("/vms", "shop-web"),
    ("/vms/cluster-bank/bank-web", "SyncFailed"),
    ("/networks", "trunk"),
];

/// Pages that receive no changes, with a text that they show.
const OTHER_PAGES: [(&str, &str); 3] = [
    ("/tenants/bank/create", "Number of machines"),
    ("/hosts/rack1-a/drain", "cluster-bank/bank-web"),
    ("/vms/cluster-bank/bank-web/why", "It changes no object"),
];

/// Running console whose users sign in.
struct Console {
    plane: ControlPlane,
    _process: ConsoleProcess,
    url: String,
    cookie: String,
}

impl Console {
    fn start(plane: ControlPlane) -> Self {
        let token = plane.create_token("berth-console").unwrap();
        let kubeconfig = plane.write_kubeconfig("berth-console", &token, false).unwrap();
        let log = plane.folder().join("console.log");
        let process = ConsoleProcess::start(&kubeconfig, &["--sign-in"], &log).unwrap();
        let (_, port) = process.url.rsplit_once(':').unwrap();
        let cookie = format!("berth-session-{port}");
        let console = Self { url: process.url.clone(), cookie, plane, _process: process };
        let is_ready = || (console.curl("/readyz", &[]).0 == 200).then_some(());
        console.plane.wait_until("all objects are listed", TIMEOUT, |_| is_ready()).unwrap();
        console
    }

    /// Sends a request without a browser, and returns the status code, the headers and the body.
    fn curl(&self, path: &str, options: &[&str]) -> (u16, String) {
        let url = format!("{}{path}", self.url);
        let output =
            Command::new("curl").args(["-s", "-i"]).args(options).arg(url).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let code = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
        (code, text)
    }

    fn open(&self, browser: &Browser, path: &str) {
        browser.open(&format!("{}{path}", self.url)).unwrap();
    }

    fn sign_in(&self, browser: &Browser, token: &str) {
        self.open(browser, "/sign-in");
        browser.fill("#token", token).unwrap();
        browser.click("button").unwrap();
        browser.wait("the fleet is open", |browser| Ok(browser.text("h1")? == "Fleet")).unwrap();
    }
}

fn all_pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.into_iter().chain(OTHER_PAGES)
}

fn start_browser(width: u32, has_scripts: bool) -> Browser {
    Browser::start(BrowserOptions { width, has_scripts }).unwrap()
}

/// Runs axe-core in the page.
fn assert_accessible(browser: &Browser, page: &str) {
    let file = berth_tests::repository().join("tests/data/axe-core/axe.min.js.gz");
    let mut axe = String::new();
    GzDecoder::new(File::open(file).unwrap()).read_to_string(&mut axe).unwrap();
    browser.run(&axe, Vec::new()).unwrap();
    let script = "const done = arguments[0]; \
        window.axe.run(document).then((result) => done(result.violations.map((one) => \
        ({id: one.id, nodes: one.nodes.map((node) => node.html + ' ' + node.failureSummary)}))), (error) => done(String(error)));";
    let violations = browser.run_async(script, Vec::new()).unwrap();
    assert_eq!(violations, json!([]), "{page}: {violations:#}");
}

/// Renders a component with kustomize; `None` if kubectl is not installed.
fn render_component(name: &str) -> Option<String> {
    let folder = berth_tests::repository().join("deploy/components").join(name);
    let output = Command::new("kubectl").arg("kustomize").arg(folder).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn console_behind_a_proxy_needs_no_certificate() {
    let test = "console_behind_a_proxy_needs_no_certificate";
    let Some(proxied) = render_component("console-tls-proxy") else {
        return skip(test, "kubectl is not installed");
    };
    for part in [
        "- --tls-proxy\n",
        "scheme: HTTP\n",
        "tcpSocket:\n            port: http\n",
        "targetPort: http\n",
        "berth.dev/console-proxy: \"true\"\n",
        "kind: ClusterRoleBinding\n",
    ] {
        assert!(proxied.contains(part), "{part}: {proxied}");
    }
    for part in ["--tls-certificate", "--tls-key", "HTTPS", "https", "berth-console-tls", "/tls"] {
        assert!(!proxied.contains(part), "{part}: {proxied}");
    }
    let direct = render_component("console").unwrap();
    for part in ["scheme: HTTPS\n", "tcpSocket:\n            port: https\n", "berth-console-tls"] {
        assert!(direct.contains(part), "{part}: {direct}");
    }
    // Clients that use up the limits of the console must not cause a restart.
    for rendered in [&direct, &proxied] {
        assert!(!rendered.contains("/healthz"), "{rendered}");
    }
}

/// All parts share one control plane and one console, because starting them is the slowest step.
#[test]
fn console_works_in_a_browser() {
    if !Browser::is_installed() {
        return skip("console_works_in_a_browser", "chromium and chromedriver are not installed");
    }
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_audit_log: true,
        // For the subresources of KubeVirt.
        has_kubevirt: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    create_objects(&plane, &HOSTILE_TEXTS);
    let tenant_token = create_tenant_user(&plane);
    let guests = Guests::start(&plane);
    let console = Console::start(plane);
    let browser = start_browser(WIDTHS[1], true);
    sign_in_is_required(&console, &browser);
    pages_show_objects_and_run_no_hostile_text(&console, &browser);
    pages_are_accessible(&console, &browser);
    hosts_are_filtered(&console, &browser);
    changes_appear_on_the_open_page(&console, &browser);
    focus_survives_changes(&console, &browser);
    updates_can_be_stopped(&console, &browser);
    keyboard_is_sufficient(&console, &browser);
    pages_work_without_scripts(&console);
    machines_are_created_with_a_form(&console);
    consoles_and_screens_are_connected(&console, &guests);
    user_of_a_tenant_sees_only_the_tenant(&console, &tenant_token);
    forms_and_cookies_cannot_be_reused(&console, &browser);
}

/// Pictures of `docs/console.md`: name, path, theme and width.
const PICTURES: [(&str, &str, &str, u32); 4] = [
    ("fleet", "/", "light", 1280),
    ("host", "/hosts/rack1-a", "dark", 1280),
    ("drain", "/hosts/rack1-a/drain", "light", 1280),
    ("vms", "/vms", "dark", 480),
];

#[test]
#[ignore = "writes the pictures of docs/console.md: make screenshots"]
fn pictures_of_the_pages() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    create_objects(&plane, &USUAL_TEXTS);
    create_racks(&plane, &USUAL_TEXTS);
    let console = Console::start(plane);
    let browser = start_browser(WIDTHS[1], true);
    console.sign_in(&browser, ADMIN_TOKEN);
    let folder = berth_tests::repository().join("docs/console");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, path, theme, width) in PICTURES {
        console.open(&browser, "/");
        choose_theme(&browser, theme);
        browser.resize(width, 900).unwrap();
        console.open(&browser, path);
        browser.screenshot(&folder.join(format!("{name}.png"))).unwrap();
    }
}

fn choose_theme(browser: &Browser, theme: &str) {
    browser.click(&format!("button[value={theme}]")).unwrap();
    let selector = format!("html[data-theme={theme}]");
    browser.wait("the theme is chosen", |browser| browser.is_visible(&selector)).unwrap();
}

fn sign_in_is_required(console: &Console, browser: &Browser) {
    for (path, _) in all_pages() {
        let (code, answer) = console.curl(path, &[]);
        assert_eq!(code, 303, "{answer}");
        assert!(answer.contains("location: /sign-in?from="), "{answer}");
        assert!(answer.contains("content-security-policy: default-src 'none'"), "{answer}");
    }
    assert_eq!(console.curl("/live?page=/", &[]).0, 401);
    console.open(browser, "/vms?q=web");
    assert!(browser.url().unwrap().contains("/sign-in"));
    assert_accessible(browser, "/sign-in");
    browser.fill("#token", "wrong").unwrap();
    browser.click("button").unwrap();
    browser
        .wait("the token is refused", |browser| {
            Ok(browser.text("[role=alert]")?.contains("does not accept"))
        })
        .unwrap();
    browser.fill("#token", ADMIN_TOKEN).unwrap();
    browser.click("button").unwrap();
    // The page that was opened first.
    browser.wait("the VMs are open", |browser| Ok(browser.url()?.ends_with("/vms?q=web"))).unwrap();
}

fn pages_show_objects_and_run_no_hostile_text(console: &Console, browser: &Browser) {
    for (path, text) in all_pages() {
        console.open(browser, path);
        let shown = browser.text("main").unwrap();
        assert!(shown.contains(text), "{path}: {shown}");
        let attacked = browser.run("return window.xss ?? null;", Vec::new()).unwrap();
        assert_eq!(attacked, Value::Null, "{path} ran a script of an object");
        let inline =
            "return document.querySelectorAll('[style], style, script:not([src])').length;";
        assert_eq!(browser.run(inline, Vec::new()).unwrap(), json!(0), "{path}");
    }
    // The hostile texts are shown as texts.
    for path in ["/hosts/rack1-a", "/vms/cluster-bank/bank-web", "/networks"] {
        console.open(browser, path);
        assert!(browser.text("main").unwrap().contains(HOSTILE), "{path}");
    }
}

fn pages_are_accessible(console: &Console, browser: &Browser) {
    let paths: Vec<&str> = all_pages().map(|(path, _)| path).collect();
    assert_pages_accessible(console, browser, &paths, |_| ());
}

/// Asserts for pages, in both themes and widths, that axe-core finds no violation, and that they are not wider than the window.
/// `wait` is called after each page was opened.
fn assert_pages_accessible(
    console: &Console,
    browser: &Browser,
    paths: &[&str],
    wait: impl Fn(&Browser),
) {
    for theme in ["light", "dark"] {
        console.open(browser, "/");
        choose_theme(browser, theme);
        for width in WIDTHS {
            browser.resize(width, 900).unwrap();
            for path in paths {
                console.open(browser, path);
                wait(browser);
                assert_accessible(browser, &format!("{path} {theme} {width}"));
                let overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth;";
                let overflow = browser.run(overflow, Vec::new()).unwrap();
                assert_eq!(overflow, json!(0), "{path} is wider than {width} pixels");
            }
        }
    }
}

fn hosts_are_filtered(console: &Console, browser: &Browser) {
    console.open(browser, "/");
    browser.fill("#q", "RACK1").unwrap();
    browser.wait("one host is shown", |browser| Ok(!browser.is_visible("#host-rack2-a")?)).unwrap();
    assert!(browser.is_visible("#host-rack1-a").unwrap());
    // The sums are those of the host that is shown: two zones with 46 CPUs for pinning, of which 8 and 2 are pinned.
    assert_eq!(browser.text("#counter-hosts").unwrap(), "1");
    assert!(browser.text("#counter-cpus").unwrap().contains("10 of 92"));
    let announced = "return document.getElementById('announcement').textContent;";
    assert_eq!(browser.run(announced, Vec::new()).unwrap(), json!("Hosts: 1"));
    console.open(browser, "/?rack=rack%3Dr2");
    assert!(!browser.is_visible("#host-rack1-a").unwrap());
    console.open(browser, "/vms");
    browser.fill("#q", "shop").unwrap();
    browser
        .wait("one VM is shown", |browser| Ok(!browser.text("#view")?.contains("bank-web")))
        .unwrap();
    assert!(browser.text("#view").unwrap().contains("shop-web"));
    // The filter is sent 200 ms after a key, so the URL may have only the beginning of the text.
    browser
        .wait("the URL has the filter", |browser| Ok(browser.url()?.ends_with("/vms?q=shop")))
        .unwrap();
}

fn cordon(console: &Console, is_cordoned: bool) {
    let patched = json!({"spec": {"unschedulable": is_cordoned}});
    patch(&console.plane, "/api/v1/nodes/rack2-a", &patched);
}

fn wait_until_live(browser: &Browser) {
    browser.wait("the page is live", |browser| Ok(browser.text("#live")? == "Live")).unwrap();
}

fn changes_appear_on_the_open_page(console: &Console, browser: &Browser) {
    for (path, selector) in [("/", "#host-rack2-a"), ("/hosts/rack2-a", "#view")] {
        console.open(browser, path);
        browser.run("window.notReloaded = true;", Vec::new()).unwrap();
        wait_until_live(browser);
        for is_cordoned in [true, false] {
            cordon(console, is_cordoned);
            browser
                .wait("the page shows the change", |browser| {
                    Ok(browser.text(selector)?.contains("Cordoned") == is_cordoned)
                })
                .unwrap();
        }
        let marker = browser.run("return window.notReloaded;", Vec::new()).unwrap();
        assert_eq!(marker, json!(true), "{path} was loaded again");
    }
}

fn focus_survives_changes(console: &Console, browser: &Browser) {
    for (path, selector, changed) in [
        ("/", "#host-rack2-a a", "#host-rack2-a"),
        ("/hosts/rack2-a", "#view a[href='/vms/cluster-shop/shop-web']", "#view"),
        ("/hosts/rack2-a", "#region-vms", "#view"),
    ] {
        console.open(browser, path);
        wait_until_live(browser);
        let focus = format!("document.querySelector(\"{selector}\").focus();");
        browser.run(&focus, Vec::new()).unwrap();
        for is_cordoned in [true, false] {
            cordon(console, is_cordoned);
            browser
                .wait("the page shows the change", |browser| {
                    Ok(browser.text(changed)?.contains("Cordoned") == is_cordoned)
                })
                .unwrap();
            let script = format!(
                "return document.activeElement === document.querySelector(\"{selector}\");"
            );
            let has_focus = || browser.run(&script, Vec::new()).unwrap() == json!(true);
            browser.wait("the element has the focus", |_| Ok(has_focus())).unwrap();
        }
    }
}

fn updates_can_be_stopped(console: &Console, browser: &Browser) {
    console.open(browser, "/hosts/rack2-a");
    wait_until_live(browser);
    browser.click("#stop").unwrap();
    browser.wait("updates are stopped", |browser| Ok(browser.text("#live")? == "Stopped")).unwrap();
    // Other pages stay stopped too.
    console.open(browser, "/");
    browser.wait("updates are stopped", |browser| Ok(browser.text("#live")? == "Stopped")).unwrap();
    browser.click("#stop").unwrap();
    wait_until_live(browser);
}

fn keyboard_is_sufficient(console: &Console, browser: &Browser) {
    let focus = || {
        let script = "const at = document.activeElement; return at.id || at.textContent.trim();";
        browser.run(script, Vec::new()).unwrap()
    };
    console.open(browser, "/");
    browser.press(Key::Tab).unwrap();
    assert_eq!(focus(), json!("Skip to content"));
    browser.press(Key::Enter).unwrap();
    browser.wait("the content has the focus", |_| Ok(focus() == "content")).unwrap();
    browser.run("document.querySelector('#host-rack1-a a').focus();", Vec::new()).unwrap();
    browser.press(Key::Right).unwrap();
    assert_eq!(focus(), json!("rack2-a"));
    browser.press(Key::Enter).unwrap();
    browser.wait("the host is open", |browser| Ok(browser.text("h1")? == "rack2-a")).unwrap();
    // Every control can be reached with the tabulator key.
    console.open(browser, "/");
    let mut reached = Vec::new();
    for _ in 0..40 {
        browser.press(Key::Tab).unwrap();
        reached.push(focus().as_str().unwrap_or_default().to_owned());
    }
    for control in [
        "Fleet",
        "Tenants",
        "VMs",
        "Networks",
        "Auto",
        "Dark",
        "stop",
        "Sign out",
        "q",
        "facet-rack",
        "rack1-a",
    ] {
        assert!(reached.iter().any(|one| one == control), "{control} is not in {reached:?}");
    }
}

fn pages_work_without_scripts(console: &Console) {
    let browser = start_browser(WIDTHS[1], false);
    console.sign_in(&browser, ADMIN_TOKEN);
    for (path, text) in PAGES {
        console.open(&browser, path);
        assert!(browser.text("main").unwrap().contains(text), "{path}");
        assert_eq!(browser.text("#live").unwrap(), "Not live", "{path} runs scripts");
    }
    console.open(&browser, "/");
    browser.fill("#q", "rack1").unwrap();
    browser.click("#filter button").unwrap();
    browser.wait("one host is shown", |browser| Ok(!browser.is_visible("#host-rack2-a")?)).unwrap();
    assert!(browser.is_visible("#host-rack1-a").unwrap());
}

fn machines_are_created_with_a_form(console: &Console) {
    for has_scripts in [true, false] {
        let browser = start_browser(WIDTHS[1], has_scripts);
        console.sign_in(&browser, ADMIN_TOKEN);
        console.open(&browser, "/tenants/bank");
        browser.click("a[href='/tenants/bank/create']").unwrap();
        browser.fill("#replicas", "-1").unwrap();
        browser.fill("#name", "web").unwrap();
        if !has_scripts {
            browser.click("#create button").unwrap();
        }
        let result = |text: &'static str| {
            move |browser: &Browser| Ok(browser.text("#preview")?.contains(text))
        };
        browser.press(Key::Tab).unwrap();
        browser.wait("the number is refused", result("replicas: Use a number")).unwrap();
        let name = if has_scripts { "web" } else { "db" };
        browser.fill("#name", name).unwrap();
        browser.fill("#replicas", "3").unwrap();
        if has_scripts {
            // The YAML follows the form.
            browser.press(Key::Tab).unwrap();
        } else {
            browser.click("#create button").unwrap();
        }
        browser.wait("the API server accepts it", result("replicas: 3")).unwrap();
        let created = console.plane.get_json(&["machinedeployment", "-n", "cluster-bank", name]);
        assert!(created.is_err(), "the dry run has created {name}");
        browser.click("#preview button").unwrap();
        let is_open = |browser: &Browser| Ok(browser.url()?.ends_with("/tenants/bank"));
        browser.wait("the tenant is open", is_open).unwrap();
        let created = console.plane.get_json(&["machinedeployment", "-n", "cluster-bank", name]);
        assert_eq!(created.unwrap()["spec"]["replicas"], 3);
        let is_shown = |browser: &Browser| {
            browser.run("location.reload();", Vec::new())?;
            Ok(browser.text("#view")?.contains("0 of 3 ready"))
        };
        browser.wait("the tenant shows the MachineDeployment", is_shown).unwrap();
    }
    let log = std::fs::read_to_string(console.plane.folder().join("console.log")).unwrap();
    assert_eq!(log.matches("audit: created a MachineDeployment").count(), 2, "{log}");
}

fn user_of_a_tenant_sees_only_the_tenant(console: &Console, token: &str) {
    let browser = start_browser(WIDTHS[1], true);
    console.sign_in(&browser, token);
    for (path, own) in
        [("/", "No hosts"), ("/tenants", "bank"), ("/vms", "bank-web"), ("/networks", "trunk")]
    {
        console.open(&browser, path);
        let (source, text) = (browser.source().unwrap(), browser.text("main").unwrap());
        assert!(text.contains(own), "{path}: {text}");
        for foreign in ["shop", "rack2-a"] {
            assert!(!source.contains(foreign), "{path} shows {foreign}: {source}");
        }
        assert!(!text.contains("131"), "{path} shows the VLAN of another tenant: {text}");
    }
    console.open(&browser, "/vms/cluster-bank/bank-web");
    assert!(browser.text("main").unwrap().contains("SyncFailed"));
    for path in [
        "/vms/cluster-shop/shop-web",
        "/vms/cluster-shop/shop-web/why",
        "/tenants/shop",
        "/hosts/rack1-a",
        "/hosts/rack1-a/drain",
    ] {
        console.open(&browser, path);
        assert_eq!(browser.text("h1").unwrap(), "Not found", "{path}");
    }
    console.open(&browser, "/tenants/bank/create");
    assert!(browser.text("main").unwrap().contains("You have no permission to create"));
    // The simulation needs all objects, which this user may not list.
    console.open(&browser, "/vms/cluster-bank/bank-web/why");
    assert!(browser.text("main").unwrap().contains("you have no permission to list"));
    user_without_permission_is_refused(console, &browser);
    // The API server refused each request of this user that a page does not need.
    let log = std::fs::read_to_string(console.plane.folder().join("audit.log")).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let own: Vec<Value> = events
        .filter(|event| event["user"]["username"] == "system:serviceaccount:cluster-bank:alice")
        .filter(|event| event["stage"] == "ResponseComplete")
        .collect();
    assert!(own.len() > 10, "{} requests", own.len());
    for event in own {
        let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
        let is_review = resource.starts_with("selfsubject");
        let is_permitted_read =
            event["verb"] == "list" && event["objectRef"]["namespace"] == "cluster-bank";
        let is_refused =
            event["responseStatus"]["code"] == 403 || event["responseStatus"]["code"] == 404;
        assert!(is_review || is_permitted_read || is_refused, "{event:#}");
    }
}

fn forms_and_cookies_cannot_be_reused(console: &Console, browser: &Browser) {
    console.open(browser, "/");
    let cookie = format!("{}={}", console.cookie, browser.cookie(&console.cookie).unwrap());
    let cookie = ["-b", cookie.as_str()];
    assert_eq!(console.curl("/vms", &cookie).0, 200);
    // A form of another site has no token, or the token of another browser.
    for data in ["csrf=", "csrf=AAAA"] {
        let options = [&cookie[..], &["-d", data]].concat();
        assert_eq!(console.curl("/sign-out", &options).0, 403, "{data}");
        let options = [&options[..], &["-H", "Sec-Fetch-Site: cross-site"]].concat();
        assert_eq!(console.curl("/theme", &options).0, 403, "{data}");
    }
    assert_eq!(console.curl("/sign-in", &["-d", "token=x"]).0, 403);
    browser.click("form.user button").unwrap();
    browser
        .wait("the session has ended", |browser| Ok(browser.url()?.contains("/sign-in")))
        .unwrap();
    let (code, answer) = console.curl("/vms", &cookie);
    assert_eq!(code, 303, "a cookie is valid after the sign-out: {answer}");
    // The log has the sign-ins, and no credential.
    let log = console.plane.log("console").unwrap();
    assert!(log.contains("audit: signed in") && log.contains("audit: signed out"), "{log}");
    assert!(log.contains("audit: refused a sign-in"), "{log}");
    assert!(!log.contains(ADMIN_TOKEN), "the log contains a credential");
}
