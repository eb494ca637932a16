//! Sessions in memory. A browser has only the random id of its session: credentials stay in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::object_events::ObjectEvent;
use kube::Client;
use tokio::sync::Semaphore;

use super::read_cache::ReadCache;
use crate::pages::reads::{QuotaRow, VolumeRow};
use crate::random::{IdHash, RandomError, random_id};
use crate::rights::Rights;

/// Time after which a session ends, even if it is in use.
const MAX_SESSION_TIME: Duration = Duration::from_secs(12 * 3600);
/// Time after which an unused session ends.
const MAX_IDLE_TIME: Duration = Duration::from_secs(3600);
/// Maximum number of sessions. Unused sessions end in favour of a new session, those first that were not used for the longest
/// time. If too few sessions are unused, the new session is refused, so that new users do not sign out others.
const MAX_SESSIONS: usize = 1000;
/// Time after which a session is unused: a session of another user may end it if there are too many.
const UNUSED_TIME: Duration = Duration::from_secs(600);
/// Maximum number of sessions of a user. The session that was not used for the longest time ends in favour of a new session.
const MAX_USER_SESSIONS: usize = 20;

/// Session of a user.
pub(crate) struct Session {
    /// Name of the user for pages and for the audit log, as the API server reports it.
    pub(crate) user: String,
    /// Identifies the user for limits, also if the API server does not report the name.
    pub(crate) owner: IdHash,
    /// Client with the credential of the user.
    pub(crate) client: Client,
    /// Permissions of the user.
    pub(crate) rights: Rights,
    pub(crate) events: ReadCache<ObjectEvent>,
    pub(crate) quotas: ReadCache<QuotaRow>,
    pub(crate) volumes: ReadCache<VolumeRow>,
    /// Permits to compute parts of pages.
    pub(crate) renders: Arc<Semaphore>,
    /// Permits to read objects with the credential of the user.
    pub(crate) reads: Semaphore,
    begin: Instant,
    last_use: Mutex<Instant>,
}

impl Session {
    pub(crate) fn new(user: String, owner: IdHash, client: Client, now: Instant) -> Self {
        let rights = Rights::new(client.clone());
        Self {
            user,
            owner,
            client,
            rights,
            events: ReadCache::default(),
            quotas: ReadCache::default(),
            volumes: ReadCache::default(),
            renders: Arc::new(Semaphore::new(1)),
            reads: Semaphore::new(1),
            begin: now,
            last_use: Mutex::new(now),
        }
    }

    fn last_use(&self) -> Instant {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self, now: Instant) -> bool {
        now.duration_since(self.begin) >= MAX_SESSION_TIME || self.idle_time(now) >= MAX_IDLE_TIME
    }

    fn idle_time(&self, now: Instant) -> Duration {
        now.duration_since(self.last_use())
    }
}

/// Reason why a session was not added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddSessionError {
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error("there are too many sessions in use")]
    TooManySessions,
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
    pub(crate) fn add(&self, session: Session, now: Instant) -> Result<String, AddSessionError> {
        let id = random_id()?;
        let mut all = self.lock();
        all.retain(|_, session| !session.has_ended(now));
        let is_own = |other: &Session| other.owner == session.owner;
        let own_count = all.values().filter(|other| is_own(other)).count();
        remove_oldest(&mut all, (own_count + 1).saturating_sub(MAX_USER_SESSIONS), is_own);
        let excess = (all.len() + 1).saturating_sub(MAX_SESSIONS);
        remove_oldest(&mut all, excess, |other| other.idle_time(now) >= UNUSED_TIME);
        if all.len() >= MAX_SESSIONS {
            return Err(AddSessionError::TooManySessions);
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

/// Removes at most `count` selected sessions, those first that were not used for the longest time.
fn remove_oldest(
    all: &mut HashMap<IdHash, Arc<Session>>,
    count: usize,
    is_selected: impl Fn(&Session) -> bool,
) {
    if count == 0 {
        return;
    }
    let selected = all.iter().filter(|(_, session)| is_selected(session));
    let mut selected: Vec<(Instant, IdHash)> =
        selected.map(|(id, session)| (session.last_use(), *id)).collect();
    selected.sort_unstable_by_key(|(last_use, _)| *last_use);
    for (_, id) in selected.into_iter().take(count) {
        all.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_helpers::test_client;

    fn session_of(user: &str, now: Instant) -> Session {
        let client = test_client(|_| (500, String::new()));
        Session::new(user.to_owned(), IdHash::new(user), client, now)
    }

    fn test_session(now: Instant) -> Session {
        session_of("alice", now)
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
        let add = |number: usize, now: Instant| {
            store.add(session_of(&format!("user-{number}"), now), now)
        };
        for number in 1..MAX_SESSIONS {
            add(number, second).unwrap();
        }
        // Sessions that are in use do not end in favour of others.
        let refused = add(MAX_SESSIONS, second);
        assert!(matches!(refused, Err(AddSessionError::TooManySessions)), "{refused:?}");
        assert_eq!(store.lock().len(), MAX_SESSIONS);
        // The session that was not used for the longest time ends.
        let later = begin + UNUSED_TIME;
        let last = add(MAX_SESSIONS, later).unwrap();
        assert_eq!(store.lock().len(), MAX_SESSIONS);
        assert!(store.get(&first, Use::ByUser, later).is_none());
        assert!(store.get(&last, Use::ByUser, later).is_some());
        // All others were used a second later.
        assert!(add(MAX_SESSIONS + 1, later).is_err());
    }

    #[tokio::test]
    async fn a_user_ends_only_own_sessions() {
        let (store, begin) = (SessionStore::default(), Instant::now());
        let other = store.add(session_of("bob", begin), begin).unwrap();
        let own = |second: u64| {
            let at = begin + Duration::from_secs(second);
            store.add(test_session(at), at).unwrap()
        };
        let all: Vec<String> = (1..=100).map(own).collect();
        let now = begin + Duration::from_secs(100);
        assert!(store.get(&other, Use::ByUser, now).is_some());
        let valid = all.iter().filter(|id| store.get(id, Use::ByUser, now).is_some());
        assert_eq!(valid.count(), MAX_USER_SESSIONS);
        assert!(store.get(&all[99], Use::ByUser, now).is_some());
    }
}
