//! The answers of `object-hyper`, by `owned-io-http`.

use std::rc::Rc;

use object_hyper::Objects;
use owned_io::{Buffers, ByteStream, Clock};
use owned_io_http::{BodyLength, Config, Connection, Error, Response};

/// Answers the requests of a connection until it ends.
///
/// # Errors
/// Those of the connection. An error ends this connection only.
pub(crate) async fn answer<C: Clock>(
    stream: impl ByteStream,
    buffers: Buffers,
    objects: Rc<Objects>,
) -> Result<(), Error> {
    let mut connection = Connection::<C, _>::new(stream, &buffers, Config::default());
    while let Some(request) = connection.next().await? {
        let object = objects.at(request.path()).filter(|_| request.method() == "GET");
        let Some(mut object) = object else {
            connection.respond(&Response::new(404), "").await?;
            continue;
        };
        let Some(chunk_bytes) = objects.chunk_bytes() else {
            connection.respond(&Response::new(200), object).await?;
            continue;
        };
        connection.begin(&Response::new(200), BodyLength::Chunked).await?;
        while !object.is_empty() {
            let chunk = object.split_to(chunk_bytes.get().min(object.len()));
            connection.write_body(chunk).await?;
        }
        connection.finish().await?;
    }
    Ok(())
}
