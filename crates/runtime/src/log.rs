//! Logging to standard error.

use clap::ValueEnum;

/// Format of the log.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormat {
    /// Human-readable lines; without timestamps under systemd, because the journal adds them
    Text,
    /// JSON
    Json,
}

/// Starts logging to standard error. Messages of the crate kube are not logged, because the callers log kube's errors
/// with more context.
pub fn init_logging(format: LogFormat) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
    use tracing_subscriber::util::SubscriberInitExt as _;

    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false);
    let lines = match format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => {
            lines.without_time().boxed()
        }
        LogFormat::Text => lines.boxed(),
    };
    let targets = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("kube_client", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF);
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
}
