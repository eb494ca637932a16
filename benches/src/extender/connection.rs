//! A keep-alive HTTP connection to the extender, as kube-scheduler uses one.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Time limit for one answer. The extender may delay an answer, but for less than this time.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit until a server listens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Connection that sends one request at a time.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
}

/// Answer of an extender to a `filter` call.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct FilterResponse {
    pub(super) node_names: Option<Vec<String>>,
    #[serde(default)]
    pub(super) error: String,
}

impl Connection {
    /// Connects to a port of this machine. Retries until a server listens.
    pub(super) fn connect(port: u16) -> Result<Self> {
        let begin = Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => {
                    ensure!(begin.elapsed() < CONNECT_TIMEOUT, "127.0.0.1:{port}: {error}");
                    std::thread::sleep(RETRY_INTERVAL);
                }
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, request: Vec::new(), response: Vec::new() })
    }

    /// Sends a `filter` request and reads the whole answer. The returned time is measured from before the first
    /// byte of the request until after the last byte of the answer.
    pub(super) fn filter(&mut self, body: &[u8]) -> Result<(Duration, FilterResponse)> {
        self.request.clear();
        write!(
            self.request,
            "POST /filter HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )?;
        self.request.extend_from_slice(body);
        self.response.clear();
        let begin = Instant::now();
        self.stream.write_all(&self.request)?;
        let head = self.read_response()?;
        let elapsed = begin.elapsed();
        let body = self.response.get(head..).unwrap_or_default();
        let answer = serde_json::from_slice(body);
        Ok((elapsed, answer.with_context(|| String::from_utf8_lossy(body).into_owned())?))
    }

    /// Reads a whole HTTP response, and returns the offset of its body.
    fn read_response(&mut self) -> Result<usize> {
        let mut part = [0; 1 << 16];
        let mut body_range: Option<(usize, usize)> = None;
        loop {
            if let Some((head, length)) = body_range
                && self.response.len() >= head + length
            {
                return Ok(head);
            }
            let count = self.stream.read(&mut part).context("read the response of the extender")?;
            if count == 0 {
                bail!("the extender has closed the connection");
            }
            self.response.extend_from_slice(part.get(..count).unwrap_or_default());
            if body_range.is_none() {
                body_range = parse_head(&self.response)?;
            }
        }
    }
}

/// Returns the offset and the length of the body; `None` if the HTTP header is not complete yet.
fn parse_head(response: &[u8]) -> Result<Option<(usize, usize)>> {
    const HEAD_END: &[u8] = b"\r\n\r\n";
    let Some(end) = response.windows(HEAD_END.len()).position(|four| four == HEAD_END) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(response.get(..end).unwrap_or_default()).to_lowercase();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    ensure!(first.contains(" 200 "), "the extender responded with `{first}`");
    let length = lines.find_map(|line| line.strip_prefix("content-length:"));
    let length = length.with_context(|| format!("the response has no Content-Length: {text}"))?;
    Ok(Some((end + HEAD_END.len(), length.trim().parse()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_determines_the_body() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y\r\n\r\n{}";
        assert_eq!(parse_head(text).unwrap(), Some((text.len() - 2, 12)));
        assert_eq!(parse_head(&text[..30]).unwrap(), None);
        assert!(parse_head(b"HTTP/1.1 404 Not Found\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
