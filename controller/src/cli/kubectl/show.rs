//! Shows a view once, or again after each change.

use std::process::ExitCode;

use berth_api::Problem;
use berth_runtime::cli::{EXIT_UNREACHABLE, Failure, print};
use berth_views::{Kind, Snapshot};
use serde::Serialize;

use super::arguments::{ListArguments, Output};
use super::output::{Document, TableOptions};
use super::read::{Session, read_files};
use super::watch::{Shown, watch};

/// A view of the objects of a cluster.
pub(super) trait View {
    /// Rows or details, as JSON and YAML show them.
    type Data: Serialize;

    /// Returns the kind without which the view shows nothing.
    fn required_kind(&self) -> Kind;

    /// Returns the kinds that the view reads.
    fn kinds(&self) -> &[Kind];

    /// Computes the data.
    ///
    /// # Errors
    /// Returns an error if the object that the user names does not exist.
    fn data(&self, snapshot: &Snapshot) -> Result<Self::Data, NotFound>;

    /// Formats the data as tables.
    fn format(&self, data: &Self::Data, options: TableOptions) -> String;

    /// Returns the text that is shown instead of tables if there is no row, although all objects were read.
    fn empty_text(&self, _data: &Self::Data) -> Option<&'static str> {
        None
    }
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
        let (snapshot, problems) = read_files(&arguments.from, view.kinds())?;
        return show_once(view, arguments, &snapshot, &problems);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let session = Session::open_scope(&arguments.scope).await?;
        if !arguments.watch {
            let snapshot = session.read(view.kinds()).await?;
            return show_once(view, arguments, &snapshot, &[]);
        }
        let (output, required) = (arguments.output, view.required_kind());
        watch(&session, view.kinds(), required, output, |snapshot| {
            let document = document(view, arguments, snapshot, &[])?;
            let text =
                document.render(output, |data, options| format(view, snapshot, data, options))?;
            Ok(Shown { text, remarks: document.remarks(output) })
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
    let document = document(view, arguments, snapshot, problems)?;
    print(&document.render(output, |data, options| format(view, snapshot, data, options))?)?;
    document.print_remarks(output);
    let is_refused = is_refused(view, arguments, snapshot);
    Ok(ExitCode::from(if is_refused { EXIT_UNREACHABLE } else { 0 }))
}

/// Returns true if the cluster refuses the objects without which the view shows nothing. A file without these objects was
/// read nevertheless.
fn is_refused<V: View>(view: &V, arguments: &ListArguments, snapshot: &Snapshot) -> bool {
    arguments.from.is_empty() && snapshot.is_refused(view.required_kind())
}

/// Formats the data as tables. Without a row, the text depends on whether all objects were read.
fn format<V: View>(view: &V, snapshot: &Snapshot, data: &V::Data, options: TableOptions) -> String {
    let Some(text) = view.empty_text(data) else { return view.format(data, options) };
    let required = view.required_kind();
    if !snapshot.is_unread(required) {
        return text.to_owned();
    }
    let [_, _, _, objects] = required.resource();
    format!("none is shown: not all {objects} were read\n")
}

fn document<'s, V: View>(
    view: &V,
    arguments: &ListArguments,
    snapshot: &'s Snapshot,
    problems: &'s [Problem],
) -> Result<Document<'s, V::Data>, Failure> {
    let unread = snapshot.unread.as_slice();
    let data = view.data(snapshot).map_err(|error| {
        // The object may be missing because its kind was not read.
        Document { view: (), unread, problems: Vec::new() }.print_remarks(Output::Table);
        let mut failure = Failure::from(error);
        if is_refused(view, arguments, snapshot) {
            failure.exit_code = EXIT_UNREACHABLE;
        }
        failure
    })?;
    let problems = snapshot.problems().chain(problems).collect();
    Ok(Document { view: data, unread, problems })
}
