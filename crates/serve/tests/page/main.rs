//! The page in a real Chromium, against a real server of the built-in model.

mod browser;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use browser::{Browser, Screen};
use serde_json::Value;
use vit_serve::{ServeOptions, Server};

const DESKTOP: Screen = Screen { width: 1200, dark: false };
const PHONE: Screen = Screen { width: 360, dark: false };

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/images").join(name).canonicalize().unwrap()
}

fn server(options: ServeOptions) -> (Server, String) {
    let server = Server::start(ServeOptions { bind: "127.0.0.1:0".parse().unwrap(), ..options }).unwrap();
    let page = format!("http://{}/", server.address());
    (server, page)
}

/// The JSON that the API answers to an image.
fn post(address: SocketAddr, path: &str, image: &[u8]) -> Value {
    let mut connection = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        image.len()
    );
    connection.write_all(&[head.as_bytes(), image].concat()).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    serde_json::from_slice(&answer[body..]).unwrap()
}

/// The number of opaque or translucent pixels of the map's canvas, 0 while it is hidden.
const MAP_PIXELS: &str = "(() => { const canvas = document.querySelector('.frame:not(.plain) canvas'); \
    if (!canvas) return 0; \
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data; \
    return data.filter((v, i) => i % 4 === 3 && v > 0).length; })()";

/// The colours of the middle row of the map's canvas.
const MAP_ROW: &str = "(() => { const canvas = document.querySelector('.frame canvas'); \
    return canvas.getContext('2d').getImageData(0, canvas.height / 2, canvas.width, 1).data.join(); })()";

/// Errors in the browser's console: of scripts, of the page's policy, of requests.
fn errors(browser: &mut Browser) -> Vec<Value> {
    browser.events("Log.entryAdded").into_iter().filter(|entry| entry["entry"]["level"] == "error").collect()
}

/// No script failed, nothing broke the page's policy, and no request went elsewhere.
fn assert_clean(browser: &mut Browser, page: &str) {
    let thrown = browser.events("Runtime.exceptionThrown");
    assert!(thrown.is_empty(), "{thrown:?}");
    for error in errors(browser) {
        assert_eq!(error["entry"]["source"], "network", "{error}");
    }
    for request in browser.events("Network.requestWillBeSent") {
        let url = request["request"]["url"].as_str().unwrap();
        assert!(url.starts_with(page) || url.starts_with(&format!("blob:{page}")), "{url}");
    }
}

#[test]
fn an_image_gets_the_answer_of_the_api_and_a_map_of_each_class() {
    let Some(mut browser) = Browser::start() else { return };
    let (server, page) = server(ServeOptions::default());
    browser.open(&page, DESKTOP);
    assert!(browser.text("#intake").contains("Drop an image"));
    let dog = example("dog.jpg");
    browser.choose("#file", &[&dog]);
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");

    let answer = post(server.address(), "/v1/classify?top=5", &fs::read(&dog).unwrap());
    let expected: Vec<String> = answer["results"][0]["predictions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| format!("{} {:.1}%", p["label"].as_str().unwrap(), 100.0 * p["probability"].as_f64().unwrap()))
        .map(|text| text.replace(" 0.0%", " < 0.1%"))
        .collect();
    let shown = browser.evaluate(
        "[...document.querySelectorAll('.bars button')]\
         .map(bar => [...bar.children].slice(0, 2).map(part => part.innerText).join(' '))",
    );
    assert_eq!(shown, serde_json::json!(expected));
    let announced = browser.text("#announcement");
    assert!(announced.contains("dog.jpg: dog"), "{announced}");
    assert!(browser.text("#curl").contains("/v1/classify?top=5' -H 'Content-Type: image/jpeg' --data-binary @dog.jpg"));

    assert_eq!(browser.evaluate(MAP_PIXELS), 0);
    browser.hover(".bars li:nth-child(1) button");
    browser.wait_for(&format!("{MAP_PIXELS} > 10000"));
    let first = browser.evaluate(MAP_ROW);
    assert!(browser.text(".stage figcaption").contains("dog"));
    browser.hover(".bars li:nth-child(2) button");
    browser.wait_for(&format!("{MAP_ROW} !== {first}"));
    assert!(browser.text("#curl").contains("/v1/explain?"));
    browser.hover("header h1");
    browser.wait_for(&format!("{MAP_PIXELS} === 0"));

    // A class that was shown before needs no request.
    let requests = browser.events("Network.requestWillBeSent").len();
    browser.hover(".bars li:nth-child(1) button");
    browser.wait_for(&format!("{MAP_ROW} === {first}"));
    assert_eq!(browser.events("Network.requestWillBeSent").len(), requests);
    assert_clean(&mut browser, &page);
    assert_eq!(errors(&mut browser), [] as [Value; 0]);
}

#[test]
fn attention_is_shown_by_layer_and_head() {
    let Some(mut browser) = Browser::start() else { return };
    let (_server, page) = server(ServeOptions::default());
    browser.open(&page, Screen { dark: true, ..DESKTOP });
    browser.choose("#file", &[&example("bird.jpg")]);
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    let choose = |browser: &mut Browser, label: &str, value: &str| {
        browser.evaluate(&format!(
            "(() => {{ const labels = [...document.querySelectorAll('.panel-head label')]; \
             const select = labels.find(label => label.textContent.startsWith({label:?})).querySelector('select'); \
             select.value = {value:?}; \
             select.dispatchEvent(new Event('change')); }})()"
        ));
    };
    choose(&mut browser, "Map", "attention");
    browser.wait_for(&format!("{MAP_PIXELS} > 10000"));
    let mean = browser.evaluate(MAP_ROW);
    choose(&mut browser, "Head", "1");
    browser.wait_for(&format!("{MAP_ROW} !== {mean}"));
    choose(&mut browser, "Layer", "0");
    browser.wait_for("document.querySelector('#curl').innerText.includes('method=attention&layer=0&head=1')");
    assert!(browser.text(".stage figcaption").contains("layer 0, head 1"));
    assert_eq!(browser.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(14, 17, 22)");
    assert_clean(&mut browser, &page);
}

#[test]
fn an_image_that_cannot_be_decoded_is_named_with_the_reason() {
    let Some(mut browser) = Browser::start() else { return };
    let (server, page) = server(ServeOptions::default());
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.jpg");
    fs::write(&broken, &fs::read(example("dog.jpg")).unwrap()[..300]).unwrap();
    browser.open(&page, DESKTOP);
    browser.choose("#file", &[&broken]);
    browser.wait_for("document.querySelector('.status.bad')");
    let problem = post(server.address(), "/v1/classify", &fs::read(&broken).unwrap());
    let shown = browser.text(".status.bad");
    assert_eq!(shown, format!("broken.jpg: {}", problem["images"][0]["detail"].as_str().unwrap()));

    // The next image is answered as always.
    browser.choose("#file", &[&example("ship.jpg")]);
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    assert_eq!(browser.evaluate("document.querySelectorAll('#strip li').length"), 2);
    assert_clean(&mut browser, &page);
}

#[test]
fn a_phone_needs_no_horizontal_scrolling() {
    let Some(mut browser) = Browser::start() else { return };
    let (_server, page) = server(ServeOptions::default());
    let width = "document.documentElement.scrollWidth";
    browser.open(&page, PHONE);
    assert_eq!(browser.evaluate(width), 360);
    browser.choose("#file", &[&example("car.jpg"), &example("dog.jpg")]);
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    browser.evaluate("document.querySelector('.bars button').click()");
    browser.wait_for(&format!("{MAP_PIXELS} > 10000"));
    browser.evaluate("document.querySelector('.card').open = true");
    assert_eq!(browser.evaluate(width), 360);

    browser.open(&format!("{page}docs"), PHONE);
    browser.wait_for("document.querySelectorAll('.route').length > 5");
    browser.evaluate("document.querySelectorAll('.route').forEach(route => { route.open = true; })");
    browser.wait_for(
        "[...document.querySelectorAll('.route')].every(route => route.querySelector('.inside').children.length)",
    );
    browser.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })");
    assert_eq!(browser.evaluate(width), 360);
    assert_clean(&mut browser, &page);
}

#[test]
fn the_keyboard_reaches_classes_and_keeps_their_maps() {
    let Some(mut browser) = Browser::start() else { return };
    let (_server, page) = server(ServeOptions::default());
    browser.open(&page, DESKTOP);
    browser.press("Tab");
    assert_eq!(browser.text(":focus"), "Skip to the answers");
    browser.choose("#file", &[&example("dog.jpg")]);
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    let mut reached = Vec::new();
    while browser.evaluate("document.activeElement.matches('.bars button')") == false {
        browser.press("Tab");
        reached.push(browser.text(":focus").lines().next().unwrap_or_default().to_string());
        assert!(reached.len() < 15, "{reached:?}");
    }
    browser.wait_for(&format!("{MAP_PIXELS} > 10000"));
    assert_eq!(browser.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "solid");
    browser.press("ArrowDown");
    browser.press("Enter");
    browser.wait_for("document.querySelector('.bars li:nth-child(2) button[aria-pressed=true]')");
    while browser.evaluate("document.activeElement.id === 'copy'") == false {
        browser.press("Tab");
        reached.push(browser.text(":focus").lines().next().unwrap_or_default().to_string());
        assert!(reached.len() < 40, "{reached:?}");
    }
    browser.wait_for(&format!("{MAP_PIXELS} > 10000"));
    browser.evaluate("document.querySelector('.bars button').focus()");
    browser.press("Escape");
    browser.wait_for(&format!("{MAP_PIXELS} === 0"));
    assert_clean(&mut browser, &page);
}

#[test]
fn an_overloaded_server_is_asked_again_after_a_countdown() {
    let Some(mut browser) = Browser::start() else { return };
    let (_server, page) = server(ServeOptions::default());
    browser.open(&page, DESKTOP);
    let pattern = serde_json::json!({ "patterns": [{ "urlPattern": "*/v1/classify*" }] });
    browser.call("Fetch.enable", pattern);
    browser.choose("#file", &[&example("dog.jpg")]);
    let refused = browser.event("Fetch.requestPaused");
    browser.call(
        "Fetch.fulfillRequest",
        serde_json::json!({
            "requestId": refused["requestId"],
            "responseCode": 429,
            "responseHeaders": [{ "name": "Retry-After", "value": "2" }],
        }),
    );
    browser.wait_for("document.querySelector('.status.wait')?.innerText.includes('in 2 s')");
    browser.wait_for("document.querySelector('.status.wait')?.innerText.includes('in 1 s')");
    let again = browser.event("Fetch.requestPaused");
    browser.call("Fetch.continueRequest", serde_json::json!({ "requestId": again["requestId"] }));
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    assert_clean(&mut browser, &page);
}

#[test]
fn a_server_that_is_gone_is_waited_for() {
    let Some(mut browser) = Browser::start() else { return };
    let (gone, page) = server(ServeOptions::default());
    let bind = gone.address();
    browser.open(&page, DESKTOP);
    browser.wait_for("document.querySelector('#served').innerText.includes('parameters')");
    gone.shutdown();
    browser.choose("#file", &[&example("dog.jpg")]);
    browser.wait_for("document.querySelector('#notice').innerText.includes('does not answer')");
    assert!(browser.text(".status.bad").starts_with("dog.jpg has no answer yet"));
    let _back = Server::start(ServeOptions { bind, ..ServeOptions::default() }).unwrap();
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    assert_eq!(browser.evaluate("document.querySelector('#notice').hidden"), true);
}

#[test]
fn images_are_shown_as_the_server_turns_them_and_shrunk_only_beyond_its_limit() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let turned = folder.path().join("turned.jpg");
    // An EXIF block with nothing but orientation 6: a quarter turn clockwise.
    let mut exif =
        b"\xff\xd8\xff\xe1\x00\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0".to_vec();
    exif.extend(&fs::read(example("car.jpg")).unwrap()[2..]);
    fs::write(&turned, &exif).unwrap();

    let (_server, page) = server(ServeOptions { max_body_bytes: 20_000, ..ServeOptions::default() });
    browser.open(&page, DESKTOP);
    browser.choose("#file", &[&example("bird.jpg")]);
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    assert!(!browser.text(".results").contains("Sent as a JPEG"));
    browser.choose("#file", &[&turned]);
    browser.wait_for("document.querySelector('.results').innerText.includes('Sent as a JPEG')");
    assert!(browser.text(".stage figcaption").contains("270 × 360"), "{}", browser.text(".stage figcaption"));
    assert_clean(&mut browser, &page);
}

#[test]
fn a_key_is_asked_for_where_the_server_needs_one() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    fs::write(&keys, "a-key-that-is-long-enough-for-anyone\n").unwrap();
    let (_server, page) = server(ServeOptions { api_key_file: Some(keys), ..ServeOptions::default() });
    browser.open(&page, DESKTOP);
    browser.wait_for("!document.querySelector('#key').hidden");
    browser.evaluate("document.querySelector('#key-value').value = 'a-key-that-is-long-enough-for-anyone'");
    browser.evaluate("document.querySelector('#key button').click()");
    browser.wait_for("document.querySelector('#served').innerText.includes('parameters')");
    browser.choose("#file", &[&example("dog.jpg")]);
    browser.wait_for("document.querySelectorAll('.bars button').length === 5");
    assert!(browser.text("#curl").contains("$VIT_API_KEY"));
    assert_clean(&mut browser, &page);
}

#[test]
fn the_api_is_documented_and_can_be_tried() {
    let Some(mut browser) = Browser::start() else { return };
    let (_server, page) = server(ServeOptions::default());
    browser.open(&format!("{page}docs#get-health-ready"), DESKTOP);
    browser.wait_for("document.querySelectorAll('.route').length > 5");
    let documented = browser.evaluate(
        "fetch('openapi.json').then(r => r.json()).then(d => Object.entries(d.paths)\
         .flatMap(([path, item]) => ['get', 'post'].filter(method => item[method]).map(method => `${method} ${path}`))\
         .sort())",
    );
    let shown = browser.evaluate(
        "[...document.querySelectorAll('.route > summary')]\
         .map(route => `${route.children[0].textContent} ${route.children[1].textContent}`).sort()",
    );
    assert_eq!(shown, documented);
    browser.wait_for("document.querySelector('#get-health-ready[open] .try button')");
    browser.evaluate("document.querySelector('#get-health-ready .try button').click()");
    browser.wait_for("document.querySelector('#get-health-ready .try pre').innerText.startsWith('200')");
    browser.evaluate(
        "(() => { const find = document.querySelector('#find'); find.value = 'explain'; \
         find.dispatchEvent(new Event('input')); })()",
    );
    assert_eq!(browser.text("#found"), "1 route");
    browser.evaluate("document.querySelector('.route:not([hidden])').open = true");
    browser.wait_for(
        "document.querySelector('.route:not([hidden]) .shell')?.innerText.includes('--data-binary @image.jpg')",
    );
    assert_clean(&mut browser, &page);
}
