//! The public API of `pipeplan-core`, one line for each item, in `core/api.txt`.
//!
//! A change of the API shows as a change of that file, so that a reviewer sees it. `PIPEPLAN_UPDATE=1` writes the file.
//! The list comes from the source: every `pub` item that a path of public modules and `pub use` lines reaches, with its
//! signature, public fields, variants, methods and traits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pipeplan_tests::process::top;
use quote::ToTokens;

/// The names of a module or an item, from the crate on.
type Names = Vec<String>;

/// What the crate holds, by the module that defines it.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Names, Vec<syn::Item>>,
}

impl Crate {
    /// Reads a module's file and all modules below it, without those for tests.
    fn read(&mut self, folder: &Path, file: &Path, module: Names) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(folder, module, parsed.items);
    }

    fn add(&mut self, folder: &Path, module: Names, items: Vec<syn::Item>) {
        let mut kept: Vec<syn::Item> = items.into_iter().filter(|item| !only_for_tests(item)).collect();
        for item in &mut kept {
            let syn::Item::Mod(child) = item else { continue };
            let name = child.ident.to_string();
            let below: Names = module.iter().cloned().chain([name.clone()]).collect();
            if let Some((_, items)) = child.content.take() {
                self.add(&folder.join(&name), below, items);
                continue;
            }
            let inside = folder.join(&name).join("mod.rs");
            let file = if inside.exists() { inside } else { folder.join(format!("{name}.rs")) };
            self.read(&folder.join(&name), &file, below);
        }
        self.modules.insert(module, kept);
    }

    /// The item with this name in a module: its definition, or what a `use` line there stands for.
    fn find(&self, module: &[String], name: &str) -> Option<(Names, &syn::Item)> {
        let items = self.modules.get(module)?;
        if let Some(item) = items.iter().find(|item| name_of(item).is_some_and(|found| found == name)) {
            return Some((module.to_vec(), item));
        }
        let used = items.iter().filter_map(|item| match item {
            syn::Item::Use(line) => Some(leaves(&line.tree)),
            _ => None,
        });
        used.flatten().find(|(_, to)| to == name).and_then(|(path, _)| self.follow(module, &path))
    }

    fn follow(&self, module: &[String], path: &[String]) -> Option<(Names, &syn::Item)> {
        let (name, way) = path.split_last()?;
        let mut at = module.to_vec();
        for (index, step) in way.iter().enumerate() {
            match step.as_str() {
                "crate" if index == 0 => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                step => at.push(step.to_string()),
            }
        }
        self.find(&at, name)
    }

    /// The lines of every public item below a module, and the names of its types.
    fn list(&self, module: &[String], lines: &mut BTreeSet<String>, types: &mut BTreeMap<String, String>) {
        for item in &self.modules[module] {
            if !is_public(item) {
                continue;
            }
            match item {
                syn::Item::Mod(child) => {
                    let below: Names = module.iter().cloned().chain([child.ident.to_string()]).collect();
                    lines.insert(format!("mod {}", shown(&below)));
                    self.list(&below, lines, types);
                }
                syn::Item::Use(line) => {
                    for (path, name) in leaves(&line.tree) {
                        match self.follow(module, &path) {
                            // A type is named by the shortest path to it.
                            Some((_, found)) => describe(found, &at(module, &name), lines, types),
                            None => {
                                lines.insert(format!("use {} = {}", at(module, &name), path.join("::")));
                            }
                        }
                    }
                }
                item => describe(item, &at(module, &name_of(item).unwrap_or_default()), lines, types),
            }
        }
    }

    /// The methods and traits of public types, wherever they are written.
    fn list_methods(&self, types: &BTreeMap<String, String>, lines: &mut BTreeSet<String>) {
        for item in self.modules.values().flatten() {
            let syn::Item::Impl(block) = item else { continue };
            let syn::Type::Path(of) = &*block.self_ty else { continue };
            let Some(path) = of.path.segments.last().and_then(|last| types.get(&last.ident.to_string())) else {
                continue;
            };
            if let Some((_, name, _)) = &block.trait_ {
                lines.insert(format!("impl {} for {path}", tidy(name)));
                continue;
            }
            for member in &block.items {
                match member {
                    syn::ImplItem::Fn(method) if public(&method.vis) => {
                        lines.insert(format!("{path}::{}", signature(&method.sig)));
                    }
                    syn::ImplItem::Const(constant) if public(&constant.vis) => {
                        lines.insert(format!("{path}::const {}: {}", constant.ident, tidy(&constant.ty)));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn shown(names: &[String]) -> String {
    names.join("::")
}

fn at(module: &[String], name: &str) -> String {
    if module.is_empty() { name.into() } else { format!("{}::{name}", shown(module)) }
}

fn public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

fn is_public(item: &syn::Item) -> bool {
    match item {
        syn::Item::Const(item) => public(&item.vis),
        syn::Item::Enum(item) => public(&item.vis),
        syn::Item::Fn(item) => public(&item.vis),
        syn::Item::Mod(item) => public(&item.vis),
        syn::Item::Static(item) => public(&item.vis),
        syn::Item::Struct(item) => public(&item.vis),
        syn::Item::Trait(item) => public(&item.vis),
        syn::Item::Type(item) => public(&item.vis),
        syn::Item::Use(item) => public(&item.vis),
        _ => false,
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn only_for_tests(item: &syn::Item) -> bool {
    let syn::Item::Mod(module) = item else { return false };
    module.attrs.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
    })
}

/// Each name that a `use` tree brings, with the path that it stands for.
fn leaves(tree: &syn::UseTree) -> Vec<(Names, String)> {
    match tree {
        syn::UseTree::Path(path) => leaves(&path.tree)
            .into_iter()
            .map(|(below, name)| (core::iter::once(path.ident.to_string()).chain(below).collect(), name))
            .collect(),
        syn::UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        syn::UseTree::Rename(new) => vec![(vec![new.ident.to_string()], new.rename.to_string())],
        syn::UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
        syn::UseTree::Glob(_) => vec![(vec!["*".into()], "*".into())],
    }
}

/// Tokens as one line, without the spaces that nobody writes.
fn tidy(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        (" :", ":"),
        ("& ", "&"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("[ ", "["),
        (" ]", "]"),
        (" ;", ";"),
        ("' ", "'"),
        ("- >", "->"),
        ("->(", "-> ("),
        ("->", " -> "),
        ("  ", " "),
        (",)", ")"),
        (",>", ">"),
    ] {
        text = text.replace(from, to);
    }
    text
}

/// A function's signature with the names and types of its arguments.
fn signature(signature: &syn::Signature) -> String {
    tidy(signature)
}

/// The traits that a type derives, which programs rely on as on those written out.
fn derived(attributes: &[syn::Attribute]) -> Vec<String> {
    let lists = attributes.iter().filter(|attribute| attribute.path().is_ident("derive"));
    let mut names: Vec<String> = Vec::new();
    for list in lists {
        let _ = list.parse_nested_meta(|meta| {
            names.extend(meta.path.segments.last().map(|last| last.ident.to_string()));
            Ok(())
        });
    }
    names.sort();
    names
}

/// The fields of a variant, without their documentation.
fn fields_of(fields: &syn::Fields) -> String {
    let each = fields.iter().map(|field| match &field.ident {
        Some(name) => format!("{name}: {}", tidy(&field.ty)),
        None => tidy(&field.ty),
    });
    let all = each.collect::<Vec<_>>().join(", ");
    match fields {
        syn::Fields::Named(_) => format!(" {{ {all} }}"),
        syn::Fields::Unnamed(_) => format!("({all})"),
        syn::Fields::Unit => String::new(),
    }
}

fn describe(item: &syn::Item, path: &str, lines: &mut BTreeSet<String>, types: &mut BTreeMap<String, String>) {
    let mut type_is = |name: &syn::Ident| {
        let known = types.entry(name.to_string()).or_insert_with(|| path.into());
        if path.len() < known.len() {
            *known = path.into();
        }
    };
    let derives = |attributes: &[syn::Attribute]| {
        let names = derived(attributes);
        if names.is_empty() { String::new() } else { format!(" derives {}", names.join(", ")) }
    };
    match item {
        syn::Item::Const(item) => {
            lines.insert(format!("const {path}: {}", tidy(&item.ty)));
        }
        syn::Item::Static(item) => {
            lines.insert(format!("static {path}: {}", tidy(&item.ty)));
        }
        syn::Item::Type(item) => {
            lines.insert(format!("type {path}{} = {}", tidy(&item.generics), tidy(&item.ty)));
        }
        syn::Item::Fn(item) => {
            let text = signature(&item.sig);
            lines.insert(format!("{}::{text}", path.rsplit_once("::").map_or("", |(module, _)| module)));
        }
        syn::Item::Trait(item) => {
            lines.insert(format!("trait {path}{}", tidy(&item.generics)));
            for member in &item.items {
                if let syn::TraitItem::Fn(method) = member {
                    lines.insert(format!("{path}::{}", signature(&method.sig)));
                }
            }
        }
        syn::Item::Struct(item) => {
            type_is(&item.ident);
            lines.insert(format!("struct {path}{}{}", tidy(&item.generics), derives(&item.attrs)));
            for (index, field) in item.fields.iter().enumerate().filter(|(_, field)| public(&field.vis)) {
                let name = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
                lines.insert(format!("{path}.{name}: {}", tidy(&field.ty)));
            }
        }
        syn::Item::Enum(item) => {
            type_is(&item.ident);
            lines.insert(format!("enum {path}{}{}", tidy(&item.generics), derives(&item.attrs)));
            for variant in &item.variants {
                lines.insert(format!("{path}::{}{}", variant.ident, fields_of(&variant.fields)));
            }
        }
        _ => {}
    }
}

fn listed() -> String {
    let source = top().join("core/src");
    let mut all = Crate::default();
    all.read(&source, &source.join("lib.rs"), Vec::new());
    let (mut lines, mut types) = (BTreeSet::new(), BTreeMap::new());
    all.list(&[], &mut lines, &mut types);
    all.list_methods(&types, &mut lines);
    lines.into_iter().map(|line| line + "\n").collect()
}

#[test]
fn the_public_api_is_the_one_that_was_reviewed() {
    let path = top().join("core/api.txt");
    let now = listed();
    if std::env::var_os("PIPEPLAN_UPDATE").is_some() {
        std::fs::write(&path, now).unwrap();
        return;
    }
    let before = std::fs::read_to_string(&path).unwrap();
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (before.lines().collect(), now.lines().collect());
    let gone = old.difference(&new).map(|line| format!("- {line}\n"));
    let come = new.difference(&old).map(|line| format!("+ {line}\n"));
    let changed: String = gone.chain(come).collect();
    assert!(
        changed.is_empty(),
        "the public API of pipeplan-core is another than core/api.txt says:\n{changed}\
         If that is meant, say it in CHANGELOG.md and run this test with PIPEPLAN_UPDATE=1."
    );
}

#[test]
fn items_of_every_kind_are_listed() {
    let text = "
        mod hidden { pub struct Moved { pub field: u64, private: u8 } impl Moved { pub fn get(&self) -> &u64 { &self.field } fn no(&self) {} } }
        pub use hidden::Moved;
        #[derive(Clone)] pub enum Kind { One, Two(Vec<u8>) }
        impl core::fmt::Display for Kind {}
        pub const MOST: usize = 3;
        pub(crate) fn inner() {}
        pub mod shown { pub fn run<T: Clone>(input: &[T]) -> Option<T> { None } }
        #[cfg(test)] mod tests { pub fn not_this() {} }
    ";
    let mut all = Crate::default();
    all.add(Path::new("/nowhere"), Vec::new(), syn::parse_file(text).unwrap().items);
    let (mut lines, mut types) = (BTreeSet::new(), BTreeMap::new());
    all.list(&[], &mut lines, &mut types);
    all.list_methods(&types, &mut lines);
    let expected = [
        "Kind::One",
        "Kind::Two(Vec<u8>)",
        "Moved.field: u64",
        "Moved::fn get(&self) -> &u64",
        "const MOST: usize",
        "enum Kind derives Clone",
        "impl core::fmt::Display for Kind",
        "mod shown",
        "shown::fn run<T: Clone>(input: &[T]) -> Option<T>",
        "struct Moved",
    ];
    assert_eq!(lines.into_iter().collect::<Vec<_>>(), expected);
}
