//! Which handler answers which path, and the layers around all of them.

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use super::keys::require_key;
use super::observe::observe;
use super::{App, admin, assets, classify, embed, explain, health, kserve, metrics, models, openai, openapi};
use crate::{ServeError, page};

/// Routes with their list, which the OpenAPI document is compared with.
#[derive(Default)]
pub struct Routes {
    /// For everyone: health and the page.
    open: Router<Arc<App>>,
    /// For clients with a key, if there are keys.
    keyed: Router<Arc<App>>,
    cors: Option<CorsLayer>,
    /// Method and path of every operation; the page's files are none.
    pub operations: Vec<(Method, String)>,
}

impl Routes {
    fn open<H: Handler<T, Arc<App>>, T: 'static>(mut self, path: &str, handler: H) -> Self {
        self.operations.push((Method::GET, path.into()));
        self.open = self.open.route(path, get(handler));
        self
    }

    pub fn get<H: Handler<T, Arc<App>>, T: 'static>(self, path: &str, handler: H) -> Self {
        self.on(Method::GET, MethodFilter::GET, path, handler)
    }

    pub fn post<H: Handler<T, Arc<App>>, T: 'static>(self, path: &str, handler: H) -> Self {
        self.on(Method::POST, MethodFilter::POST, path, handler)
    }

    fn on<H: Handler<T, Arc<App>>, T: 'static>(
        mut self,
        method: Method,
        filter: MethodFilter,
        path: &str,
        handler: H,
    ) -> Self {
        self.operations.push((method, path.into()));
        let route: MethodRouter<Arc<App>> = on(filter, handler);
        self.keyed = self.keyed.route(path, route);
        self
    }

    /// A gRPC call; the OpenAPI document has none of them.
    pub fn call<H: Handler<T, Arc<App>>, T: 'static>(mut self, path: &str, handler: H) -> Self {
        self.keyed = self.keyed.route(path, post(handler));
        self
    }

    /// A gRPC call for everyone.
    pub fn open_call<H: Handler<T, Arc<App>>, T: 'static>(mut self, path: &str, handler: H) -> Self {
        self.open = self.open.route(path, post(handler));
        self
    }

    fn page(mut self) -> Self {
        for asset in page::assets() {
            let answer = move |headers: HeaderMap| async move { assets::answer(asset, &headers) };
            self.open = self.open.route(asset.path, get(answer));
        }
        self
    }

    fn administration(self) -> Self {
        self.get("/metrics", metrics::metrics).post("/admin/reload", admin::reload)
    }

    /// The routes within their layers.
    pub fn into_router(self, app: &Arc<App>) -> Router {
        let keyed = self.keyed.layer(from_fn_with_state(app.clone(), require_key));
        let mut router = self.open.merge(keyed).fallback(|| async { StatusCode::NOT_FOUND });
        if let Some(cors) = self.cors {
            router = router.layer(cors);
        }
        router.layer(from_fn_with_state(app.clone(), observe)).with_state(app.clone())
    }
}

/// The API and the page; metrics and administration too, if they have no address of their own.
pub fn public(app: &App, cors: Option<CorsLayer>) -> Routes {
    let routes = Routes { cors, ..all() };
    if app.options.admin_bind.is_some() { routes } else { routes.administration() }
}

fn all() -> Routes {
    let routes = Routes::default()
        .page()
        .open("/health/live", health::live)
        .open("/health/ready", health::ready)
        .open("/openapi.json", openapi::document)
        .get("/v1/models", models::models)
        .post("/v1/classify", classify::classify)
        .post("/v1/embed", embed::embed)
        .post("/v1/explain", explain::explain)
        .post("/v1/embeddings", openai::embeddings)
        .open("/v2/health/live", kserve::live)
        .open("/v2/health/ready", kserve::ready);
    kserve::grpc::routes(kserve::routes(routes))
}

/// Metrics, administration and health, for an address of their own.
pub fn admin() -> Routes {
    Routes::default().open("/health/live", health::live).open("/health/ready", health::ready).administration()
}

/// Lets pages of these origins use the API; without any, browsers refuse them.
pub fn cors(origins: &[String]) -> Result<Option<CorsLayer>, ServeError> {
    let exposed = ["x-request-id", "retry-after", "inference-header-content-length", "traceparent"];
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(Any)
        .expose_headers(exposed.map(HeaderName::from_static));
    if origins.is_empty() {
        return Ok(None);
    }
    if origins.iter().any(|origin| origin == "*") {
        return Ok(Some(layer.allow_origin(Any)));
    }
    let origin = |text: &String| {
        let is_origin = text.split_once("://").is_some_and(|(_, host)| !host.is_empty() && !host.contains('/'));
        HeaderValue::from_str(text).ok().filter(|_| is_origin).ok_or_else(|| ServeError::Origin(text.clone()))
    };
    let origins: Vec<HeaderValue> = origins.iter().map(origin).collect::<Result<_, _>>()?;
    Ok(Some(layer.allow_origin(AllowOrigin::list(origins))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_has_exactly_the_routes_of_the_server() {
        let routed: BTreeSet<String> =
            (all().administration().operations.iter()).map(|(method, path)| format!("{method} {path}")).collect();
        assert_eq!(routed, openapi::operations());
    }

    #[test]
    fn origins_are_checked() {
        assert!(cors(&[]).unwrap().is_none());
        assert!(cors(&["https://example.org".into()]).unwrap().is_some());
        for wrong in ["example.org", "https://", "https://example.org/", "https://a\n"] {
            assert!(cors(&[wrong.into()]).is_err(), "{wrong}");
        }
    }
}
