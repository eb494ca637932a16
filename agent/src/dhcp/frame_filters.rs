//! The filters of a port's socket, and the rate limit of frames to the guest.

use std::time::{Duration, Instant};

use berth_dhcp_responder::{FilterInstruction, request_filter, socket_filter};
use berth_runtime::token_bucket::TokenBucket;
use socket2::SockFilter;

/// The filters, in the kernel's form.
#[derive(Debug)]
pub(super) struct FrameFilters {
    /// Accepts requests of the guest, and server messages to the guest.
    pub(super) all_frames: Vec<SockFilter>,
    /// Accepts only requests of the guest.
    pub(super) requests_only: Vec<SockFilter>,
}

impl FrameFilters {
    pub(super) fn new() -> Self {
        Self {
            all_frames: to_sock_filters(socket_filter()),
            requests_only: to_sock_filters(request_filter()),
        }
    }
}

/// Returns a program in the kernel's form.
pub(super) fn to_sock_filters(program: &[FilterInstruction]) -> Vec<SockFilter> {
    program.iter().map(|one| SockFilter::new(one.code, one.jt, one.jf, one.k)).collect()
}

/// Rate limit of frames to the guest: the number that is read at once, and the interval after which one more is read.
const FRAME_RATE_LIMIT: (u32, Duration) = (32, Duration::from_secs(1));
/// Time for which the socket receives only requests, after too many frames to the guest.
const LIMITED_TIME: Duration = Duration::from_secs(30);

/// Rate limit of frames to the guest. The agent only reports such frames, so a flood of them must not delay the answers
/// to the guest. While the limit is exceeded, a filter makes the kernel discard them.
#[derive(Debug)]
pub(super) struct GuestFrameRateLimit {
    token_bucket: TokenBucket,
    limited_until: Option<Instant>,
}

impl GuestFrameRateLimit {
    pub(super) fn new() -> Self {
        Self {
            token_bucket: TokenBucket::new(FRAME_RATE_LIMIT.0, FRAME_RATE_LIMIT.1),
            limited_until: None,
        }
    }

    /// Returns true if a frame to the guest may be handled. If the limit is exceeded, no such frame is handled for
    /// [`LIMITED_TIME`].
    pub(super) fn allows_frame(&mut self, now: Instant) -> bool {
        // Frames that arrived before the filter was replaced may still be in the socket.
        if self.limited_until.is_some() {
            return false;
        }
        let has_token = self.token_bucket.take_token(now).is_ok();
        if !has_token {
            self.limited_until = Some(now + LIMITED_TIME);
        }
        has_token
    }

    /// Returns the end of [`LIMITED_TIME`]; `None` if the limit is not exceeded.
    pub(super) const fn limited_until(&self) -> Option<Instant> {
        self.limited_until
    }

    /// Allows frames to the guest again.
    pub(super) fn allow_frames(&mut self) {
        self.limited_until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_rate_limited() {
        let mut limit = GuestFrameRateLimit::new();
        let begin = Instant::now();
        let count = |limit: &mut GuestFrameRateLimit, at| {
            (0..1000).filter(|_| limit.allows_frame(at)).count()
        };
        assert_eq!(count(&mut limit, begin), 32);
        assert_eq!(limit.limited_until(), Some(begin + LIMITED_TIME));
        assert_eq!(count(&mut limit, begin + LIMITED_TIME), 0, "until the filter is replaced");
        limit.allow_frames();
        assert_eq!(limit.limited_until(), None);
        assert_eq!(count(&mut limit, begin + LIMITED_TIME), 30);
    }
}
