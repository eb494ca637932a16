//! Command `storageclasses`.

use std::process::ExitCode;

use berth_runtime::cli::Failure;
use berth_runtime::cli::columns::{Cell, Column};
use berth_views::storage_classes::{self, StorageClassRow, rows};
use berth_views::{Kind, Severity, Snapshot};
use serde::Serialize;

use super::arguments::ListArguments;
use super::output::{TableOptions, severe, yes_no};
use super::show::{NotFound, View, show};

/// List the storage classes that tenants may use
///
/// The classes are those of `infraStorageClasses` in the InfraConfig. DISKS: for disks of machines. VOLUMES: for volumes in
/// tenants' clusters.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth storageclasses           the classes, and what each is for\n  \
    kubectl berth storageclasses -o yaml")]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    list: ListArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    show(&StorageClassesView, &arguments.list)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StorageClasses {
    storage_classes: Vec<StorageClassRow>,
}

struct StorageClassesView;

impl View for StorageClassesView {
    type Data = StorageClasses;

    fn required_kind(&self) -> Kind {
        Kind::InfraConfig
    }

    fn kinds(&self) -> &[Kind] {
        &storage_classes::KINDS
    }

    fn data(&self, snapshot: &Snapshot) -> Result<StorageClasses, NotFound> {
        Ok(StorageClasses { storage_classes: rows(snapshot) })
    }

    fn empty_text(&self, data: &StorageClasses) -> Option<&'static str> {
        data.storage_classes
            .is_empty()
            .then_some("no storage class: add spec.infraStorageClasses to the InfraConfig\n")
    }

    fn format(&self, data: &StorageClasses, options: TableOptions) -> String {
        let mut columns = vec![
            Column::flexible("NAME", 12),
            Column::text("DEFAULT"),
            Column::text("DISKS"),
            Column::text("VOLUMES"),
            Column::flexible("PROVISIONER", 11),
            Column::flexible("BINDING", 9),
            Column::text("RECLAIM"),
        ];
        if options.is_wide {
            columns.extend(["EXPANDABLE", "ZONES", "REGIONS"].map(Column::text));
        }
        let cells: Vec<_> =
            data.storage_classes.iter().map(|row| cells(row, options.is_wide)).collect();
        options.table(&columns, &cells)
    }
}

fn cells(row: &StorageClassRow, is_wide: bool) -> Vec<Cell> {
    let is_missing = row.exists == Some(false);
    let provisioner = match &row.provisioner {
        Some(provisioner) => Cell::new(provisioner),
        None if is_missing => severe("missing", Severity::Failure),
        None => Cell::new(""),
    };
    let mut cells = vec![
        severe(&row.name, if is_missing { Severity::Failure } else { Severity::Ok }),
        Cell::new(yes_no(Some(row.is_default))),
        Cell::new(yes_no(Some(row.is_for_machines))),
        Cell::new(yes_no(Some(row.is_for_tenants))),
        provisioner,
        Cell::from(row.binding_mode.as_ref()),
        Cell::new(&row.reclaim_policy),
    ];
    if is_wide {
        cells.extend([
            Cell::new(yes_no(row.is_expandable)),
            Cell::new(&row.zones.join(",")),
            Cell::new(&row.regions.join(",")),
        ]);
    }
    cells
}
