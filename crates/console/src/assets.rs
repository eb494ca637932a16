//! Files that pages load: scripts, styles and the icon. Their paths contain a hash of the content, so that browsers keep
//! them without asking again.

use std::io::Write as _;
use std::sync::{LazyLock, OnceLock};

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, VARY,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{Context, SHA256};

mod novnc;

/// Name, type and content of a file.
type File = (&'static str, &'static str, &'static [u8]);

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

const FILES: [File; 8] = [
    ("console.css", STYLE, include_bytes!("../assets/console.css")),
    ("console.js", SCRIPT, include_bytes!("../assets/console.js")),
    ("stream.js", SCRIPT, include_bytes!("../assets/stream.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg")),
    ("htmx.js", SCRIPT, include_bytes!("../assets/vendor/htmx.min.js")),
    ("xterm.mjs", SCRIPT, include_bytes!("../assets/vendor/xterm/xterm.mjs")),
    ("xterm.css", STYLE, include_bytes!("../assets/vendor/xterm/xterm.css")),
    ("addon-fit.mjs", SCRIPT, include_bytes!("../assets/vendor/xterm/addon-fit.mjs")),
];

/// Number of characters of the hash in a path.
const HASH_LENGTH: usize = 16;

struct Asset {
    name: &'static str,
    content_type: &'static str,
    path: String,
    hash: String,
    plain: Bytes,
    /// Compressed content, after the first request for it.
    compressed: OnceLock<Bytes>,
}

impl Asset {
    fn new((name, content_type, content): File, hash: &str) -> Self {
        Self {
            name,
            content_type,
            path: format!("/assets/{hash}/{name}"),
            hash: hash.to_owned(),
            plain: Bytes::from_static(content),
            compressed: OnceLock::new(),
        }
    }

    fn compressed(&self) -> Bytes {
        self.compressed.get_or_init(|| compress(&self.plain, Compression::best()).into()).clone()
    }
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let single = FILES.into_iter().map(|file| Asset::new(file, &hash_of([file.2])));
    // The modules of noVNC import each other with relative paths, so that they have one hash.
    let hash = hash_of(novnc::FILES.map(|(_, content)| content));
    single.chain(modules().map(|file| Asset::new(file, &hash))).collect()
});

/// Returns the modules of noVNC.
fn modules() -> impl Iterator<Item = File> {
    novnc::FILES.into_iter().map(|(name, content)| (name, SCRIPT, content))
}

/// Returns the hash of the contents of files.
fn hash_of(contents: impl IntoIterator<Item = &'static [u8]>) -> String {
    let mut context = Context::new(&SHA256);
    for content in contents {
        context.update(content);
    }
    let hash = URL_SAFE_NO_PAD.encode(context.finish());
    hash.chars().take(HASH_LENGTH).collect()
}

/// Returns the path of a file, such as `console.css`; the path of a missing file is empty.
pub(crate) fn path(name: &str) -> &'static str {
    ASSETS.iter().find(|asset| asset.name == name).map_or("", |asset| asset.path.as_str())
}

/// Returns the paths of the files whose names begin with `folder`.
pub(crate) fn paths_below(folder: &str) -> impl Iterator<Item = &'static str> {
    let below = ASSETS.iter().filter(move |asset| asset.name.starts_with(folder));
    below.map(|asset| asset.path.as_str())
}

/// Serves a file.
pub(crate) async fn serve(
    Path((hash, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let asset = ASSETS.iter().find(|asset| asset.name == name && asset.hash == hash);
    let Some(asset) = asset else { return StatusCode::NOT_FOUND.into_response() };
    let head = [
        (CONTENT_TYPE, asset.content_type),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
        (VARY, "Accept-Encoding"),
    ];
    if accepts_gzip(&headers) {
        let mut response = (head, asset.compressed()).into_response();
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        return response;
    }
    (head, asset.plain.clone()).into_response()
}

/// Returns true if a client accepts responses that are compressed with gzip.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && parts.all(|part| part != "q=0")
    })
}

/// Compresses content with gzip.
pub(crate) fn compress(content: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    // Writing to memory cannot fail.
    encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::body::to_bytes;
    use flate2::read::GzDecoder;

    use super::*;

    async fn get(path: &str, encoding: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let (hash, name) = path.trim_start_matches("/assets/").split_once('/').unwrap();
        let path = Path((hash.to_owned(), name.to_owned()));
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, encoding.parse().unwrap());
        let (head, body) = serve(path, headers).await.into_parts();
        (head.status, head.headers, to_bytes(body, 1 << 20).await.unwrap().to_vec())
    }

    #[tokio::test]
    async fn files_are_served_with_and_without_compression() {
        for (name, content_type, content) in FILES.into_iter().chain(modules()) {
            let (code, headers, body) = get(path(name), "identity").await;
            assert_eq!((code, body.as_slice()), (StatusCode::OK, content));
            assert_eq!(headers[CONTENT_TYPE], content_type);
            let (_, headers, body) = get(path(name), "br;q=1.0, gzip;q=0.8").await;
            assert_eq!(headers[CONTENT_ENCODING], "gzip");
            let mut plain = Vec::new();
            GzDecoder::new(body.as_slice()).read_to_end(&mut plain).unwrap();
            assert_eq!(plain, content);
        }
        let wrong_hash = format!("/assets/{}/console.css", "A".repeat(HASH_LENGTH));
        for missing in [wrong_hash.as_str(), "/assets/x/Cargo.toml", "/assets/../x"] {
            assert_eq!(get(missing, "gzip").await.0, StatusCode::NOT_FOUND, "{missing}");
        }
        assert_eq!(path("missing"), "");
        assert_eq!(paths_below("novnc/").count(), novnc::FILES.len());
    }
}
