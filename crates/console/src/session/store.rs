//! Sessions in memory. A browser has only the random id of its session: credentials stay in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use ring::digest::{SHA256, digest};

use crate::random::{RandomError, random_id};
use crate::rights::Rights;

/// Time after which a session ends, even if it is in use.
const MAX_SESSION_TIME: Duration = Duration::from_secs(12 * 3600);
/// Time after which an unused session ends.
const MAX_IDLE_TIME: Duration = Duration::from_secs(3600);
/// Maximum number of sessions. The session that was not used for the longest time ends in favour of a new session.
const MAX_SESSIONS: usize = 1000;

/// Session of a user.
pub(crate) struct Session {
    /// Name of the user for pages and for the audit log, as the API server reports it.
    pub(crate) user: String,
    /// Client with the credential of the user.
    pub(crate) client: Client,
    /// Permissions of the user.
    pub(crate) rights: Rights,
    begin: Instant,
    last_use: Mutex<Instant>,
}

impl Session {
    pub(crate) fn new(user: String, client: Client, now: Instant) -> Self {
        let rights = Rights::new(client.clone());
        Self { user, client, rights, begin: now, last_use: Mutex::new(now) }
    }

    fn last_use(&self) -> Instant {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self, now: Instant) -> bool {
        now.duration_since(self.begin) >= MAX_SESSION_TIME
            || now.duration_since(self.last_use()) >= MAX_IDLE_TIME
    }
}

/// Hash of the id of a session. The time of a comparison of hashes reveals nothing about an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct IdHash([u8; 32]);

impl IdHash {
    fn new(id: &str) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, id.as_bytes()).as_ref());
        Self(hash)
    }
}

/// A request of the browser, which keeps the session in use; or a refresh of an open page, which does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    ByUser,
    ByRefresh,
}

/// All sessions.
#[derive(Default)]
pub(crate) struct SessionStore(Mutex<HashMap<IdHash, Arc<Session>>>);

impl SessionStore {
    fn lock(&self) -> MutexGuard<'_, HashMap<IdHash, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session, and returns its id.
    pub(crate) fn add(&self, session: Session, now: Instant) -> Result<String, RandomError> {
        let id = random_id()?;
        let mut all = self.lock();
        all.retain(|_, session| !session.has_ended(now));
        while all.len() >= MAX_SESSIONS {
            let oldest = all.iter().min_by_key(|(_, session)| session.last_use());
            let Some(oldest) = oldest.map(|(id, _)| *id) else { break };
            all.remove(&oldest);
        }
        all.insert(IdHash::new(&id), Arc::new(session));
        Ok(id)
    }

    /// Returns the session with this id; `None` if it has ended or never existed.
    pub(crate) fn get(&self, id: &str, usage: Use, now: Instant) -> Option<Arc<Session>> {
        let hash = IdHash::new(id);
        let mut all = self.lock();
        let session = Arc::clone(all.get(&hash)?);
        if session.has_ended(now) {
            all.remove(&hash);
            return None;
        }
        if usage == Use::ByUser {
            *session.last_use.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
        Some(session)
    }

    /// Ends a session.
    pub(crate) fn remove(&self, id: &str) -> Option<Arc<Session>> {
        self.lock().remove(&IdHash::new(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_helpers::test_client;

    fn test_session(now: Instant) -> Session {
        Session::new("alice".to_owned(), test_client(|_| (500, String::new())), now)
    }

    #[tokio::test]
    async fn session_ends_after_its_time_and_by_removal() {
        let (store, begin) = (SessionStore::default(), Instant::now());
        let id = store.add(test_session(begin), begin).unwrap();
        assert!(store.get(&id, Use::ByUser, begin).is_some());
        for wrong in ["", "x", &id.to_lowercase(), &format!("{id}=")] {
            assert!(store.get(wrong, Use::ByUser, begin).is_none(), "{wrong}");
        }
        // In use, the session lasts 12 hours.
        let half = MAX_IDLE_TIME / 2;
        for step in 1..24 {
            assert!(store.get(&id, Use::ByUser, begin + half * step).is_some(), "{step}");
        }
        assert!(store.get(&id, Use::ByUser, begin + MAX_SESSION_TIME).is_none());
        assert!(store.get(&id, Use::ByUser, begin).is_none(), "an ended session is removed");

        // An open page does not keep a session.
        let id = store.add(test_session(begin), begin).unwrap();
        assert!(store.get(&id, Use::ByRefresh, begin + half).is_some());
        assert!(store.get(&id, Use::ByRefresh, begin + MAX_IDLE_TIME).is_none());

        let id = store.add(test_session(begin), begin).unwrap();
        assert!(store.remove(&id).is_some());
        assert!(store.get(&id, Use::ByUser, begin).is_none());
    }

    #[tokio::test]
    async fn number_of_sessions_is_bounded() {
        let (store, begin) = (SessionStore::default(), Instant::now());
        let first = store.add(test_session(begin), begin).unwrap();
        let second = begin + Duration::from_secs(1);
        let last = (0..MAX_SESSIONS).map(|_| store.add(test_session(second), second).unwrap());
        let last = last.last().unwrap();
        assert_eq!(store.lock().len(), MAX_SESSIONS);
        assert!(store.get(&first, Use::ByUser, second).is_none());
        assert!(store.get(&last, Use::ByUser, second).is_some());
    }
}
