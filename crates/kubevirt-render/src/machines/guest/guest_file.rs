//! A file that Berth adds to the user data of a guest.

/// A file to add to the user data.
pub(super) struct GuestFile {
    pub(super) path: String,
    /// Permission bits of the file, such as `0o600`.
    pub(super) mode: u32,
    pub(super) content: String,
}
