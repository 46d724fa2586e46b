//! Objects over HTTP by hyper, on any connection that it can use. The program of this package serves them on tokio, and
//! `object-through-traits` on connections of owned-io.

#![forbid(unsafe_code)]

mod body;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::io;
use std::num::NonZero;
use std::rc::Rc;

use body::ObjectBody;
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use peers_common::{Args, objects};

/// The objects in memory, and the length of chunks if there is one.
pub struct Objects {
    by_name: HashMap<String, Bytes>,
    chunk_bytes: Option<NonZero<usize>>,
}

impl Objects {
    /// Reads the objects that the command line names.
    ///
    /// # Errors
    /// Those of [`objects::read`].
    pub fn read(args: &Args) -> io::Result<Rc<Self>> {
        let by_name = objects::read(&args.objects)?.into_iter();
        let by_name = by_name.map(|(name, object)| (name, Bytes::from(object))).collect();
        Ok(Rc::new(Self { by_name, chunk_bytes: args.chunk_bytes }))
    }

    /// The object at the path of a request.
    pub fn at(&self, path: &str) -> Option<Bytes> {
        self.by_name.get(path.strip_prefix(objects::PATH)?).cloned()
    }

    /// The length of the chunks of each body. `None`: bodies are sent with their length.
    pub fn chunk_bytes(&self) -> Option<NonZero<usize>> {
        self.chunk_bytes
    }

    fn response(&self, request: &Request<Incoming>) -> Response<ObjectBody> {
        let object = self.at(request.uri().path());
        match object.filter(|_| request.method() == Method::GET) {
            Some(object) => Response::new(ObjectBody::new(object, self.chunk_bytes)),
            None => {
                let mut response = Response::new(ObjectBody::new(Bytes::new(), None));
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_name.keys()).finish()
    }
}

/// Answers the requests of a connection until it ends.
///
/// # Errors
/// Those of hyper. An error ends this connection only.
pub async fn answer(io: impl Read + Write + Unpin, objects: Rc<Objects>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        ready(Ok::<_, Infallible>(objects.response(&request)))
    });
    // Pipelined answers leave together, as they do in its authors' benchmarks.
    http1::Builder::new().pipeline_flush(true).serve_connection(io, service).await
}
