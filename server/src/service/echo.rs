//! Echo: what arrives goes back, as it arrives.

use std::io;

use owned_io::{ByteStream, OwnedWrite, Pool, copy};

/// Serves one connection until its peer ends it.
///
/// Cut-through: one read, one write, through a buffer of `pool` that is held only meanwhile.
///
/// # Errors
/// The connection's.
pub async fn serve(stream: impl ByteStream, pool: Pool) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    copy(&mut read, &mut write, &pool).await?;
    // Over TLS an end has to be said. Who is gone need not hear it.
    let _ = write.shutdown().await;
    Ok(())
}
