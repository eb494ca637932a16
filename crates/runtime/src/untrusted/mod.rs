//! Client of untrusted API servers, such as the API servers of tenants.
//!
//! The owner of a server chooses its address and all its responses. Therefore each address is checked after the
//! server's name is resolved ([`RefusedAddress`]), the sizes of responses and the number of connections are limited,
//! and no error contains text from the server or from its kubeconfig, except an [`Explanation`] of a refused request.

mod address;
mod bounded;
mod client;
mod connector;
mod error;
mod explanation;
mod slots;
mod watch;

pub use address::{RefusedAddress, effective_destination};
pub use bounded::{BoundedMap, BoundedVec};
pub use client::{Answer, ClientIdentity, InvalidClientConfig, UntrustedClient};
pub use connector::AddressPolicy;
pub use error::{CertificateFault, UntrustedError};
pub use explanation::{Explanation, RequestFailure};
pub use slots::{ConnectionSlots, LargeAnswerPermits};
pub use watch::{
    CollectionEvent, CollectionLimits, Versioned, list_collection, parse_watch_line,
    watch_collection,
};
