//! What the program prints: read to the end, kept within limits.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much of the log's end is kept, in bytes.
pub(super) const LOG: usize = 16 << 10;

/// Reads the answer; false: it is longer than `limit`, and the rest was not read.
pub(super) async fn answer(
    from: impl AsyncRead + Unpin,
    limit: u64,
    answer: &mut Vec<u8>,
) -> io::Result<bool> {
    from.take(limit.saturating_add(1)).read_to_end(answer).await?;
    Ok(answer.len() as u64 <= limit)
}

/// The end of the log. What comes before is read, too, so that the program never waits for a reader.
pub(super) async fn log(mut from: impl AsyncRead + Unpin, kept: &mut VecDeque<u8>) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        kept.extend(&buffer[..length]);
        kept.drain(..kept.len().saturating_sub(LOG));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_has_its_limit_and_a_log_keeps_its_end() {
        let mut read = Vec::new();
        assert!(answer(&b"12345"[..], 5, &mut read).await.unwrap());
        assert_eq!(read, b"12345");
        assert!(!answer(&b"123456"[..], 5, &mut Vec::new()).await.unwrap());
        let long: Vec<u8> = (0..100_000_u32).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
        let mut kept = VecDeque::new();
        log(&long[..], &mut kept).await.unwrap();
        assert_eq!(kept.into_iter().collect::<Vec<u8>>(), long[long.len() - LOG..]);
    }
}
