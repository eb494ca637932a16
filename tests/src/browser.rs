//! Debian's chromium without a window, driven by chromedriver.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fantoccini::actions::{InputSource as _, KeyAction, KeyActions};
use fantoccini::elements::Element;
use fantoccini::error::CmdError;
use fantoccini::key::Key;
use fantoccini::wd::Capabilities;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::running::Running;
use crate::wait::{Pending, wait_until};

/// Programs of Debian's packages `chromium` and `chromium-driver`.
const CHROMIUM: &str = "/usr/bin/chromium";
const CHROMEDRIVER: &str = "/usr/bin/chromedriver";
/// Maximum number of starts of chromedriver if another process uses its port.
const MAX_START_ATTEMPTS: usize = 10;
/// Time limit for a page to reach a state.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Options of a browser.
#[derive(Clone, Copy, Debug)]
pub struct BrowserOptions {
    /// Width of the window in pixels.
    pub width: u32,
    /// True if pages may run scripts.
    pub has_scripts: bool,
}

/// A browser with a profile of its own. It is closed on drop.
pub struct Browser {
    runtime: Runtime,
    driver: Option<Client>,
    _process: Running,
    /// Output of chromedriver, which would otherwise fail to write.
    _output: BufReader<ChildStdout>,
}

impl std::fmt::Debug for Browser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Browser").finish_non_exhaustive()
    }
}

impl Browser {
    /// Returns true if the programs are installed.
    #[must_use]
    pub fn is_installed() -> bool {
        [CHROMIUM, CHROMEDRIVER].iter().all(|program| Path::new(program).exists())
    }

    /// Starts a browser.
    ///
    /// # Errors
    /// Fails if chromedriver or chromium does not start.
    pub fn start(options: BrowserOptions) -> Result<Self> {
        let (process, output, port) = start_chromedriver()?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let url = format!("http://127.0.0.1:{port}");
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities(options));
        let driver = runtime.block_on(builder.connect(&url));
        let driver = Some(driver.context("chromium")?);
        Ok(Self { runtime, driver, _process: process, _output: output })
    }

    fn driver(&self) -> Result<&Client> {
        self.driver.as_ref().context("the browser is closed")
    }

    /// Opens a page.
    ///
    /// # Errors
    /// Fails if the browser does not answer.
    pub fn open(&self, url: &str) -> Result<()> {
        Ok(self.runtime.block_on(self.driver()?.goto(url))?)
    }

    /// Returns the address of the page.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn url(&self) -> Result<String> {
        Ok(self.runtime.block_on(self.driver()?.current_url())?.to_string())
    }

    /// Returns the HTML of the page.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn source(&self) -> Result<String> {
        Ok(self.runtime.block_on(self.driver()?.source())?)
    }

    /// Returns the visible text of the first element that a CSS selector selects.
    ///
    /// # Errors
    /// Fails if there is no such element.
    pub fn text(&self, selector: &str) -> Result<String> {
        self.act(selector, async |element| element.text().await)
    }

    /// Returns true if a CSS selector selects a visible element.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn is_visible(&self, selector: &str) -> Result<bool> {
        self.repeat(selector, async |driver| {
            for element in driver.find_all(Locator::Css(selector)).await? {
                if element.is_displayed().await? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Clicks on the first element that a CSS selector selects.
    ///
    /// # Errors
    /// Fails if there is no such element.
    pub fn click(&self, selector: &str) -> Result<()> {
        self.act(selector, async |element| element.click().await)
    }

    /// Replaces the text of a field.
    ///
    /// # Errors
    /// Fails if there is no such element.
    pub fn fill(&self, selector: &str, text: &str) -> Result<()> {
        self.act(selector, async |element| {
            element.clear().await?;
            element.send_keys(text).await
        })
    }

    /// Finds an element and does something with it.
    fn act<T>(
        &self,
        selector: &str,
        action: impl AsyncFn(&Element) -> Result<T, CmdError>,
    ) -> Result<T> {
        self.repeat(selector, async |driver| {
            action(&driver.find(Locator::Css(selector)).await?).await
        })
    }

    /// Sends several requests about elements. An update of the page can replace an element in between, so they are repeated.
    fn repeat<T>(
        &self,
        selector: &str,
        requests: impl AsyncFn(&Client) -> Result<T, CmdError>,
    ) -> Result<T> {
        let driver = self.driver()?;
        let begin = Instant::now();
        loop {
            match self.runtime.block_on(requests(driver)) {
                Err(error) if error.is_stale_element_reference() && begin.elapsed() < TIMEOUT => {}
                result => return result.with_context(|| selector.to_owned()),
            }
        }
    }

    /// Presses a key in the element that has the focus.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn press(&self, key: Key) -> Result<()> {
        self.press_together(&[key])
    }

    /// Presses the key of each character in the element that has the focus.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn type_text(&self, text: &str) -> Result<()> {
        let typed =
            text.chars().flat_map(|value| [KeyAction::Down { value }, KeyAction::Up { value }]);
        self.perform(typed)
    }

    /// Presses keys at the same time in the element that has the focus.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn press_together(&self, keys: &[Key]) -> Result<()> {
        let values: Vec<char> = keys.iter().filter_map(|key| key.chars().next()).collect();
        let pressed = values.iter().map(|&value| KeyAction::Down { value });
        let released = values.iter().rev().map(|&value| KeyAction::Up { value });
        self.perform(pressed.chain(released))
    }

    fn perform(&self, actions: impl Iterator<Item = KeyAction>) -> Result<()> {
        let keys = KeyActions::new("keys".to_owned());
        let keys = actions.fold(keys, KeyActions::then);
        Ok(self.runtime.block_on(self.driver()?.perform_actions(keys))?)
    }

    /// Runs the body of a function in the page, and returns its result.
    ///
    /// # Errors
    /// Fails if the script throws an error.
    pub fn run(&self, script: &str, arguments: Vec<Value>) -> Result<Value> {
        Ok(self.runtime.block_on(self.driver()?.execute(script, arguments))?)
    }

    /// Runs the body of a function in the page, whose last argument is a function that takes the result.
    ///
    /// # Errors
    /// Fails if the script throws an error, or does not return a result in time.
    pub fn run_async(&self, script: &str, arguments: Vec<Value>) -> Result<Value> {
        Ok(self.runtime.block_on(self.driver()?.execute_async(script, arguments))?)
    }

    /// Waits until a condition holds.
    ///
    /// # Errors
    /// Fails if the condition does not hold within the time limit.
    pub fn wait(
        &self,
        condition: &str,
        mut holds: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        wait_until(condition, TIMEOUT, || match holds(self) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Pending::from(self.text("body").unwrap_or_default())),
            Err(error) => Err(Pending::from(format!("{error:#}"))),
        })
    }

    /// Changes the size of the window.
    ///
    /// # Errors
    /// Fails like [`Self::open`].
    pub fn resize(&self, width: u32, height: u32) -> Result<()> {
        Ok(self.runtime.block_on(self.driver()?.set_window_rect(0, 0, width, height))?)
    }

    /// Writes a picture of the window in PNG format.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn screenshot(&self, file: &Path) -> Result<()> {
        let image = self.runtime.block_on(self.driver()?.screenshot())?;
        Ok(std::fs::write(file, image)?)
    }

    /// Returns the value of a cookie.
    ///
    /// # Errors
    /// Fails if there is no such cookie.
    pub fn cookie(&self, name: &str) -> Result<String> {
        let cookies = self.runtime.block_on(self.driver()?.get_all_cookies())?;
        match cookies.into_iter().find(|cookie| cookie.name() == name) {
            Some(cookie) => Ok(cookie.value().to_owned()),
            None => bail!("the browser has no cookie {name}"),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            // Also ends chromium.
            self.runtime.block_on(driver.close()).unwrap_or_default();
        }
    }
}

/// Starts chromedriver, and returns its process, its output and its port. With `--port=0`, it takes a port that is free for
/// IPv6 and then the same port for IPv4, which another process may use: it then ends, and is started again.
fn start_chromedriver() -> Result<(Running, BufReader<ChildStdout>, u16)> {
    let mut text = String::new();
    for _ in 0..MAX_START_ATTEMPTS {
        let mut command = Running::command(Path::new(CHROMEDRIVER), None);
        command.arg("--port=0");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Running::spawn(command)?;
        let output = process.process.stdout.take().context("chromedriver has no output")?;
        let mut output = BufReader::new(output);
        text.clear();
        if let Some(port) = read_port(&mut output, &mut text)? {
            return Ok((process, output, port));
        }
        if !text.contains("port not available") {
            break;
        }
    }
    bail!("chromedriver does not start: {text}")
}

/// Reads the port that chromedriver has chosen; `None` if it ends. Its last line of output is
/// `ChromeDriver was started successfully on port 41575.` The output is appended to `text`.
fn read_port(output: &mut BufReader<ChildStdout>, text: &mut String) -> Result<Option<u16>> {
    loop {
        let begin = text.len();
        if output.read_line(text)? == 0 {
            return Ok(None);
        }
        let line = text.get(begin..).unwrap_or_default();
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            let port = port.trim().trim_end_matches('.');
            return port.parse().map(Some).with_context(|| format!("chromedriver: {line}"));
        }
    }
}

fn capabilities(options: BrowserOptions) -> Capabilities {
    let size = format!("--window-size={},900", options.width);
    // Tests run as root, for which chromium has no sandbox. They open only pages of this machine.
    let arguments =
        json!(
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", size,]
        );
    let mut chromium = json!({"binary": CHROMIUM, "args": arguments});
    if !options.has_scripts {
        chromium["prefs"] = json!({"profile.managed_default_content_settings.javascript": 2});
    }
    Capabilities::from_iter([("goog:chromeOptions".to_owned(), chromium)])
}
