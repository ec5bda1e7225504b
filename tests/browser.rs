//! The page in a real Chromium, served by the real command.
use pipeplan_tests::browser::Browser;
#[test]
fn smoke() {
    let b = Browser::open("smoke", 1000, 700);
    b.goto("data:text/html,<h1 id=x>hello</h1><input id=i value=q><script>console.error('boo')</script>");
    assert_eq!(b.text("#x"), "hello");
    b.find("#i").fill("zz");
    assert_eq!(b.find("#i").property("value"), "zz");
    assert_eq!(b.errors().len(), 1);
    b.picture("smoke.png");
}
