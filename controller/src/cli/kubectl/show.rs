//! Shows a view once, or again after each change.

use std::process::ExitCode;

use berth_api::Problem;
use berth_runtime::cli::{EXIT_UNREACHABLE, Failure, print};
use berth_views::{Kind, Snapshot};
use serde::Serialize;

use super::arguments::{ListArguments, Output};
use super::output::{Document, TableOptions};
use super::read::{Session, read_files};
use super::watch::watch;

/// A view of the objects of a cluster.
pub(super) trait View {
    /// Rows or details, as JSON and YAML show them.
    type Data: Serialize;

    /// Returns the kinds that the view needs.
    fn kinds(&self) -> &[Kind];

    /// Computes the data.
    ///
    /// # Errors
    /// Returns an error if the object that the user names does not exist.
    fn data(&self, snapshot: &Snapshot) -> Result<Self::Data, NotFound>;

    /// Formats the data as tables.
    fn format(&self, data: &Self::Data, options: TableOptions) -> String;
}

/// Error for an object that the user names and that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {name} does not exist, or may not be read: `{command}` shows all")]
pub(super) struct NotFound {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Command that lists the objects of the kind.
    pub(super) command: &'static str,
}

/// Shows a view, of files or of a cluster.
pub(super) fn show<V: View>(view: &V, arguments: &ListArguments) -> Result<ExitCode, Failure> {
    if !arguments.from.is_empty() {
        let (snapshot, problems) = read_files(&arguments.from)?;
        return show_once(view, arguments, &snapshot, &problems);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let session = Session::open_scope(&arguments.scope).await?;
        if !arguments.watch {
            let snapshot = session.read(view.kinds()).await?;
            return show_once(view, arguments, &snapshot, &[]);
        }
        watch(&session, view.kinds(), |snapshot| {
            let document = document(view, snapshot, &[])?;
            document.render(arguments.output, |data, options| view.format(data, options))
        })
        .await
    })
}

fn show_once<V: View>(
    view: &V,
    arguments: &ListArguments,
    snapshot: &Snapshot,
    problems: &[Problem],
) -> Result<ExitCode, Failure> {
    let output = arguments.output;
    let document = match document(view, snapshot, problems) {
        Ok(document) => document,
        Err(failure) => {
            // The object may be missing because its kind was not read.
            let remarks = Document { view: (), unread: &snapshot.unread, problems: Vec::new() };
            remarks.print_remarks(Output::Table);
            return Err(failure);
        }
    };
    print(&document.render(output, |data, options| view.format(data, options))?)?;
    document.print_remarks(output);
    let is_unread = view.kinds().iter().all(|kind| {
        let mut unread = snapshot.unread.iter();
        unread.any(|unread| unread.kind == *kind && unread.only_namespace.is_none())
    });
    Ok(ExitCode::from(if is_unread { EXIT_UNREACHABLE } else { 0 }))
}

fn document<'s, V: View>(
    view: &V,
    snapshot: &'s Snapshot,
    problems: &'s [Problem],
) -> Result<Document<'s, V::Data>, Failure> {
    let view = view.data(snapshot)?;
    let problems = snapshot.problems().chain(problems).collect();
    Ok(Document { view, unread: &snapshot.unread, problems })
}
