//! A connection that is kept, as kube-scheduler keeps one to its extender.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// For one answer: longer than a call is held.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Until a server listens.
const BEGIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// It asks one thing after the other.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    sent: Vec<u8>,
    got: Vec<u8>,
}

/// What an extender answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Answer {
    pub(super) node_names: Option<Vec<String>>,
    #[serde(default)]
    pub(super) error: String,
}

impl Connection {
    /// To a port of this machine, as soon as a server listens there.
    pub(super) fn to(port: u16) -> Result<Self> {
        let begin = Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => {
                    ensure!(begin.elapsed() < BEGIN, "127.0.0.1:{port}: {error}");
                    std::thread::sleep(PAUSE);
                }
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, sent: Vec::new(), got: Vec::new() })
    }

    /// Asks for hosts, and takes the whole answer; the time is from before the first byte to after the last one.
    pub(super) fn filter(&mut self, body: &[u8]) -> Result<(Duration, Answer)> {
        self.sent.clear();
        write!(
            self.sent,
            "POST /filter HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )?;
        self.sent.extend_from_slice(body);
        self.got.clear();
        let begin = Instant::now();
        self.stream.write_all(&self.sent)?;
        let head = self.read()?;
        let took = begin.elapsed();
        let body = self.got.get(head..).unwrap_or_default();
        let answer = serde_json::from_slice(body);
        Ok((took, answer.with_context(|| String::from_utf8_lossy(body).into_owned())?))
    }

    /// Reads a whole answer; gives where its body begins.
    fn read(&mut self) -> Result<usize> {
        let mut part = [0; 1 << 16];
        let mut whole: Option<(usize, usize)> = None;
        loop {
            if let Some((head, length)) = whole
                && self.got.len() >= head + length
            {
                return Ok(head);
            }
            let count = self.stream.read(&mut part).context("no answer of the extender")?;
            if count == 0 {
                bail!("the extender has closed the connection");
            }
            self.got.extend_from_slice(part.get(..count).unwrap_or_default());
            if whole.is_none() {
                whole = head(&self.got)?;
            }
        }
    }
}

/// Where the body begins, and how long it is; `None` as long as that is not all there.
fn head(got: &[u8]) -> Result<Option<(usize, usize)>> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = got.windows(END.len()).position(|four| four == END) else { return Ok(None) };
    let text = String::from_utf8_lossy(got.get(..end).unwrap_or_default()).to_lowercase();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    ensure!(first.contains(" 200 "), "the extender answers {first}");
    let length = lines.find_map(|line| line.strip_prefix("content-length:"));
    let length = length.with_context(|| format!("no content-length: {text}"))?;
    Ok(Some((end + END.len(), length.trim().parse()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_its_head_says() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y\r\n\r\n{}";
        assert_eq!(head(text).unwrap(), Some((text.len() - 2, 12)));
        assert_eq!(head(&text[..30]).unwrap(), None);
        assert!(head(b"HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
