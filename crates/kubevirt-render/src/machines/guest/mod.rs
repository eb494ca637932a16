//! Configuration of a machine's guest: addresses of its interfaces and `/etc/berth/machine.env`.
//!
//! ```text
//! InterfaceConfigs ─┬─► cloud-init: network data version 2, and write_files of the cloud-config
//!                   └─► Ignition: NetworkManager keyfiles, or networkd units on Flatcar
//! ```

mod cloud_config;
mod configure;
mod guest_file;
mod guest_machine;
mod ignition;
mod keyfile;
mod machine_env;
mod network_data;
mod networkd_unit;
mod routes;

pub use cloud_config::MergeError;
pub use configure::{GuestData, GuestNote, configure_guest};
pub use guest_machine::GuestMachine;
