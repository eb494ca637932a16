//! Simulated VNC server (RFC 6143) with a blue screen.

use std::sync::Mutex;

use futures::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::Message;

use crate::guests::{Received, Socket};

/// Width and height of the screen, in pixels.
pub(crate) const SIZE: (u16, u16) = (64, 48);
/// Blue in the format of pixels that noVNC requests: red, green, blue and one unused byte.
const BLUE: [u8; 4] = [0, 0, 255, 0];

/// Connection of a viewer.
pub(crate) struct Framebuffer {
    socket: Socket,
    /// Bytes that were received, and not yet parsed.
    pending: Vec<u8>,
}

impl Framebuffer {
    pub(crate) const fn new(socket: Socket) -> Self {
        Self { socket, pending: Vec::new() }
    }

    /// Serves a viewer until it leaves.
    pub(crate) async fn serve(mut self, received: &Mutex<Received>) {
        if self.shake_hands().await.is_some() {
            while self.serve_message(received).await.is_some() {}
        }
    }

    /// Reads bytes; `None` if the viewer has left.
    async fn read(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.pending.len() < count {
            let message = self.socket.next().await?.ok()?;
            if message.is_binary() {
                self.pending.extend_from_slice(&message.into_data());
            }
        }
        Some(self.pending.drain(..count).collect())
    }

    async fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.socket.send(Message::binary(bytes.to_vec())).await.ok()
    }

    async fn shake_hands(&mut self) -> Option<()> {
        self.send(b"RFB 003.008\n").await?;
        assert_eq!(self.read(12).await?, b"RFB 003.008\n");
        // One type of security: none.
        self.send(&[1, 1]).await?;
        assert_eq!(self.read(1).await?, [1]);
        self.send(&0_u32.to_be_bytes()).await?;
        self.read(1).await?;
        let mut init = [SIZE.0.to_be_bytes(), SIZE.1.to_be_bytes()].concat();
        // 32 bits for a pixel, of which 24 are used; little endian; true colour with 8 bits for red, green and blue.
        init.extend([32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0]);
        init.extend(8_u32.to_be_bytes());
        init.extend(b"bank-web");
        self.send(&init).await
    }

    async fn serve_message(&mut self, received: &Mutex<Received>) -> Option<()> {
        let kind = self.read(1).await?[0];
        match kind {
            // Format of pixels.
            0 => drop(self.read(19).await?),
            // Encodings.
            2 => {
                let head = self.read(3).await?;
                let count = usize::from(u16::from_be_bytes([head[1], head[2]]));
                self.read(count * 4).await?;
            }
            // Request for an update. An incremental one is never answered: nothing changes.
            3 => {
                let is_incremental = self.read(9).await?[0] != 0;
                if !is_incremental {
                    self.send_screen().await?;
                }
            }
            // Key.
            4 => {
                let key = self.read(7).await?;
                let symbol = u32::from_be_bytes([key[3], key[4], key[5], key[6]]);
                received.lock().unwrap().keys.push((symbol, key[0] != 0));
            }
            kind => {
                // Pointer.
                assert_eq!(kind, 5, "type of a message of the viewer");
                self.read(5).await?;
            }
        }
        Some(())
    }

    /// Sends the screen as one rectangle that is not compressed.
    async fn send_screen(&mut self) -> Option<()> {
        let (width, height) = SIZE;
        let mut update = vec![0, 0, 0, 1, 0, 0, 0, 0];
        update.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
        update.extend(0_u32.to_be_bytes());
        update.extend(BLUE.repeat(usize::from(width) * usize::from(height)));
        self.send(&update).await
    }
}
