//! Which room of `core/src` may use which: the arrows of the house, held as a table.
//!
//! The test reads every file of the planner, finds each path that leads from one room into another, and refuses what the
//! table does not allow. The table goes from the bottom up: a room uses only rooms above it in the table, so there is
//! no circle of rooms. Tests inside the crate are exempt: they use what they judge and its judges.
//! ARCHITECTURE.md shows the same table; `PIPEPLAN_UPDATE=1` writes it there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pipeplan_tests::process::top;
use syn::visit_mut::VisitMut;

/// Each room, and the rooms that it may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("problem", &["base"]),
    ("simulate", &["base", "problem"]),
    ("schedule", &["base", "problem", "simulate"]),
    ("program", &["base", "problem", "simulate"]),
    ("check", &["base", "problem", "program"]),
    ("bounds", &["base", "problem"]),
    ("search", &["base", "bounds", "problem", "schedule", "simulate"]),
    ("model", &["base"]),
    ("graph", &["base", "model"]),
    ("hardware", &["base", "graph", "model", "problem"]),
    ("notation", &["base", "model", "problem", "schedule"]),
    ("spec", &["base", "graph", "hardware", "model", "notation", "problem", "program", "schedule", "simulate"]),
    ("estimate", &["base", "graph", "hardware", "model", "problem", "schedule", "simulate", "spec"]),
    (
        "plan",
        &[
            "base", "bounds", "check", "estimate", "graph", "model", "notation", "problem", "program", "schedule",
            "search", "simulate", "spec",
        ],
    ),
    ("trace", &["base", "problem", "program", "simulate"]),
    (
        "formats",
        &[
            "base", "estimate", "graph", "model", "notation", "plan", "problem", "program", "schedule", "simulate",
            "spec", "trace",
        ],
    ),
    ("advise", &["base", "bounds", "estimate", "graph", "plan", "problem", "schedule", "search", "simulate", "spec"]),
    (
        "api",
        &[
            "advise", "base", "bounds", "check", "estimate", "formats", "hardware", "notation", "plan", "problem",
            "schedule", "search", "simulate", "spec", "trace",
        ],
    ),
];

/// A module's names from the crate on, without `crate`.
type Module = Vec<String>;

/// An arrow: the room that uses, the room that is used.
type Arrow = (String, String);

/// Paths of one file that lead into the crate, as lists of names.
struct Paths {
    /// The module of the file, without `crate`.
    module: Module,
    found: Vec<Module>,
}

impl Paths {
    fn add(&mut self, path: &[String]) {
        let above = path.iter().take_while(|name| *name == "super").count();
        match path.first().map(String::as_str) {
            Some("crate") => self.found.push(path[1..].to_vec()),
            Some("super") => {
                let kept = self.module.len().saturating_sub(above);
                self.found.push(self.module[..kept].iter().chain(&path[above..]).cloned().collect());
            }
            _ => {}
        }
    }

    fn add_use(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_use(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, before)),
            syn::UseTree::Name(syn::UseName { ident }) | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                before.push(ident.to_string());
                self.add(before);
                before.pop();
            }
            syn::UseTree::Glob(_) => self.add(before),
        }
    }
}

fn only_for_tests(attributes: &[syn::Attribute]) -> bool {
    let test = |attribute: &syn::Attribute| attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test");
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && test(attribute))
}

impl VisitMut for Paths {
    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if module.content.is_some() && !only_for_tests(&module.attrs) {
            self.module.push(module.ident.to_string());
            syn::visit_mut::visit_item_mod_mut(self, module);
            self.module.pop();
        }
    }

    fn visit_item_use_mut(&mut self, item: &mut syn::ItemUse) {
        if !only_for_tests(&item.attrs) {
            self.add_use(&item.tree, &mut Vec::new());
        }
    }

    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&names);
        syn::visit_mut::visit_path_mut(self, path);
    }
}

/// The modules of `text` that are built for tests alone: their files are not read.
fn test_modules(file: &syn::File) -> impl Iterator<Item = String> + '_ {
    file.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && only_for_tests(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    })
}

/// The paths of the file of `module`.
fn paths_of(module: &[String], file: &mut syn::File) -> Vec<Module> {
    let mut paths = Paths { module: module.to_vec(), found: Vec::new() };
    paths.visit_file_mut(file);
    paths.found
}

/// The arrows that `paths`, those of a file of `module`, draw between rooms.
fn arrows_of(module: &[String], paths: &[Module]) -> BTreeSet<Arrow> {
    let Some(from) = module.first() else { return BTreeSet::new() };
    let used = paths.iter().filter_map(|path| path.first());
    used.filter(|to| *to != from).map(|to| (from.clone(), to.clone())).collect()
}

/// A file of the planner: its place, its module, and the paths in it that lead into the crate.
struct Source {
    path: PathBuf,
    module: Module,
    paths: Vec<Module>,
}

/// All files below `folder`, of which `module` is the module, without those that are built for tests alone.
fn read(folder: &Path, module: &[String], sources: &mut Vec<Source>) {
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).partition(|path| path.is_dir());
    let name_of = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    let parse = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, file)
    };
    let parsed: Vec<(PathBuf, syn::File)> = files.into_iter().map(parse).collect();
    let skipped: BTreeSet<String> = parsed.iter().flat_map(|(_, file)| test_modules(file)).collect();
    for (path, mut file) in parsed {
        let name = name_of(&path);
        if skipped.contains(&name) {
            continue;
        }
        let own = (name != "mod" && name != "lib").then_some(name);
        let module: Module = module.iter().cloned().chain(own).collect();
        let paths = paths_of(&module, &mut file);
        sources.push(Source { path, module, paths });
    }
    for folder in folders {
        let name = name_of(&folder);
        if !skipped.contains(&name) {
            let inside: Module = module.iter().cloned().chain([name]).collect();
            read(&folder, &inside, sources);
        }
    }
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    read(&top().join("core/src"), &[], &mut sources);
    assert!(sources.len() > 100, "the planner's files are found");
    sources
}

/// The arrows between rooms, with the files that draw each.
fn drawn() -> BTreeMap<Arrow, BTreeSet<PathBuf>> {
    let mut arrows: BTreeMap<Arrow, BTreeSet<PathBuf>> = BTreeMap::new();
    for source in sources() {
        for arrow in arrows_of(&source.module, &source.paths) {
            arrows.entry(arrow).or_default().insert(source.path.clone());
        }
    }
    arrows
}

/// Groups of files that use each other in a circle. A file that uses a file inside its own module does not count as an
/// arrow: `mod.rs` speaks for its folder.
fn circles(uses: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<BTreeSet<Module>> {
    let reach = |from: &Module| {
        let mut seen: BTreeSet<Module> = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(at) = open.pop() {
            let next = uses.get(&at).into_iter().flatten();
            open.extend(next.filter(|next| seen.insert((*next).clone())).cloned().collect::<Vec<_>>());
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = uses.keys().map(|module| (module, reach(module))).collect();
    let circle = |module: &Module| {
        let others =
            reached[module].iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(module)));
        others.cloned().collect::<BTreeSet<Module>>()
    };
    uses.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn no_more_than_two_files_use_each_other_in_a_circle() {
    let sources = sources();
    let known: BTreeSet<Module> = sources.iter().map(|source| source.module.clone()).collect();
    let mut uses: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for source in &sources {
        let file_of =
            |path: &Module| (1..=path.len()).rev().map(|n| path[..n].to_vec()).find(|at| known.contains(at));
        let used = source.paths.iter().filter_map(file_of).filter(|used| !used.starts_with(&source.module));
        uses.insert(source.module.clone(), used.collect());
    }
    let told: Vec<String> = circles(&uses)
        .into_iter()
        .filter(|circle| circle.len() > 2)
        .map(|circle| circle.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(", "))
        .collect();
    assert!(told.is_empty(), "circles of files:\n{}", told.join("\n"));
}

#[test]
fn circles_are_found() {
    let module = |name: &str| vec![name.to_string()];
    let uses = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("e", "f"), ("f", "e")];
    let uses = uses.into_iter().map(|(from, to)| (module(from), BTreeSet::from([module(to)]))).collect();
    let of = |names: &[&str]| names.iter().map(|name| module(name)).collect::<BTreeSet<Module>>();
    assert_eq!(circles(&uses), BTreeSet::from([of(&["a", "b", "c"]), of(&["e", "f"])]));
}

#[test]
fn rooms_use_only_what_the_table_allows() {
    let allowed: BTreeSet<Arrow> =
        ROOMS.iter().flat_map(|(from, to)| to.iter().map(|to| ((*from).into(), (*to).into()))).collect();
    let drawn = drawn();
    let mut faults: Vec<String> = Vec::new();
    for ((from, to), files) in &drawn {
        if !allowed.contains(&(from.clone(), to.clone())) {
            let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
            faults.push(format!("{from} may not use {to}: {}", files.join(", ")));
        }
    }
    for (from, to) in allowed.iter().filter(|arrow| !drawn.contains_key(*arrow)) {
        faults.push(format!("the table allows {from} to use {to}, and nothing does: take it out"));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_table_has_no_circle_and_every_folder() {
    for (at, (room, uses)) in ROOMS.iter().enumerate() {
        for used in *uses {
            let below = ROOMS[..at].iter().any(|(name, _)| name == used);
            assert!(below, "{room} uses {used}, which does not stand above it in the table");
        }
    }
    let named: BTreeSet<String> = ROOMS.iter().map(|(room, _)| (*room).into()).collect();
    let entries = std::fs::read_dir(top().join("core/src")).unwrap().map(|entry| entry.unwrap().file_name());
    let found: BTreeSet<String> =
        entries.map(|name| name.to_string_lossy().into_owned()).filter(|n| n != "lib.rs").collect();
    assert_eq!(found, named, "folders of core/src and rooms of the table");
}

/// What the other tests rest on: a file that breaks the rule is found, and one that only tests break it is not.
#[test]
fn arrows_are_seen_in_uses_and_in_paths_and_not_in_tests() {
    let text = "
        use crate::{base::units, problem::Problem as P};
        use super::super::search;
        fn f() { crate::plan::g::<super::super::trace::T>(); super::h(); }
        #[cfg(test)] mod tests { use crate::advise; }";
    let mut file = syn::parse_file(text).unwrap();
    let module = ["check".to_string(), "rows".to_string()];
    let used: Vec<String> = arrows_of(&module, &paths_of(&module, &mut file)).into_iter().map(|(_, to)| to).collect();
    assert_eq!(used, ["base", "plan", "problem", "search", "trace"]);
}

/// The rooms that a room uses directly, without those that it also reaches by way of another.
fn direct(room: &str) -> Vec<&'static str> {
    let uses = |room: &str| ROOMS.iter().find(|(name, _)| *name == room).map_or(&[][..], |(_, uses)| *uses);
    // The table lets a room use whatever it needs, so what is reached by way of another room may be missing there.
    fn reaches(from: &str, to: &str, uses: &dyn Fn(&str) -> &'static [&'static str]) -> bool {
        uses(from).iter().any(|next| *next == to || reaches(next, to, uses))
    }
    let all = uses(room);
    all.iter().copied().filter(|to| !all.iter().any(|by| reaches(by, to, &uses))).collect()
}

/// The picture: an arrow from each room to those that it uses, in the language of Mermaid, which code hosts draw.
fn picture() -> String {
    let mut picture = String::from("```mermaid\nflowchart BT\n");
    for (room, _) in ROOMS {
        for to in direct(room) {
            picture.push_str(&format!("    {room} --> {to}\n"));
        }
    }
    picture + "```\n"
}

#[test]
fn the_architecture_shows_the_table() {
    const FROM: &str = "<!-- rooms -->\n";
    const TO: &str = "<!-- /rooms -->";
    let path = top().join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(FROM).expect("ARCHITECTURE.md has a place for the table of rooms");
    let (shown, after) = rest.split_once(TO).expect("the place for the table of rooms ends");
    let mut table = picture() + "\n| Room | uses |\n|---|---|\n";
    for (room, uses) in ROOMS {
        table.push_str(&format!(
            "| `{room}` | {} |\n",
            if uses.is_empty() { "nothing".into() } else { uses.join(", ") }
        ));
    }
    if std::env::var_os("PIPEPLAN_UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{FROM}{table}{TO}{after}")).unwrap();
    } else {
        assert_eq!(shown, table, "run this test with PIPEPLAN_UPDATE=1 and read the diff");
    }
}

#[test]
fn every_room_says_what_goes_in_what_comes_out_and_what_it_knows() {
    for (room, _) in ROOMS {
        let path = top().join("core/src").join(room).join("mod.rs");
        let text = std::fs::read_to_string(&path).unwrap();
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        for said in ["//! - In", "//! - Out", "//! - Knows"] {
            assert!(head.iter().any(|line| line.starts_with(said)), "{}: no line `{said}`", path.display());
        }
    }
}
