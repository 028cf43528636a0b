//! The workspace as the rules see it: its files, and of each Rust file what it defines, names and imports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// One Rust file.
pub(super) struct Source {
    /// From the root of the workspace.
    pub(super) path: String,
    pub(super) text: String,
    /// Neither blank nor comment, modules of tests left out.
    pub(super) code_lines: usize,
    pub(super) functions: Vec<Function>,
    /// First names of all paths: crates, mostly.
    pub(super) roots: BTreeSet<String>,
    /// All paths as written, imports spelled out.
    pub(super) paths: BTreeSet<String>,
    /// Names of items and fields.
    pub(super) defined: BTreeSet<String>,
    /// Lints in `#[allow(..)]`.
    pub(super) allows: Vec<String>,
    pub(super) has_unsafe: bool,
}

pub(super) struct Function {
    pub(super) name: String,
    pub(super) lines: usize,
}

pub(super) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files with one of these endings, from the root, in order; what is not ours is left out.
pub(super) fn files(root: &Path, endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the workspace can be read").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() && !name.starts_with('.') && name != "target" && name != "shared" {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known)) {
                let path = path.strip_prefix(root).expect("it was found below the root");
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

pub(super) fn rust_files() -> Vec<String> {
    files(&root(), &["rs"])
}

pub(super) fn sources() -> Vec<Source> {
    let root = root();
    let read = |path: String| {
        let text = std::fs::read_to_string(root.join(&path)).expect("a listed file can be read");
        source(path, text)
    };
    rust_files().into_iter().map(read).collect()
}

fn source(path: String, text: String) -> Source {
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut seen = Seen::default();
    seen.visit_file(&file);
    let in_test = |line: usize| seen.tests.iter().any(|(first, last)| (*first..=*last).contains(&line));
    let code = |(number, line): &(usize, &str)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !in_test(number + 1)
    };
    let code_lines = text.lines().enumerate().filter(code).count();
    let Seen { functions, roots, paths, defined, allows, has_unsafe, .. } = seen;
    Source { path, text, code_lines, functions, roots, paths, defined, allows, has_unsafe }
}

/// Collects while it walks a file.
#[derive(Default)]
struct Seen {
    functions: Vec<Function>,
    roots: BTreeSet<String>,
    paths: BTreeSet<String>,
    defined: BTreeSet<String>,
    allows: Vec<String>,
    has_unsafe: bool,
    /// First and last lines of modules of tests.
    tests: Vec<(usize, usize)>,
}

impl Seen {
    fn define(&mut self, name: &syn::Ident) {
        self.defined.insert(name.to_string());
    }

    fn function(&mut self, signature: &syn::Signature, whole: proc_macro2::Span) {
        self.define(&signature.ident);
        self.has_unsafe |= signature.unsafety.is_some();
        let lines = whole.end().line + 1 - signature.span().start().line;
        self.functions.push(Function { name: signature.ident.to_string(), lines });
    }

    fn path(&mut self, path: String) {
        if let Some((first, _)) = path.split_once("::") {
            self.roots.insert(first.to_owned());
        }
        self.paths.insert(path);
    }

    fn import(&mut self, prefix: &str, tree: &syn::UseTree) {
        let join = |name: &syn::Ident| {
            if prefix.is_empty() { name.to_string() } else { format!("{prefix}::{name}") }
        };
        match tree {
            syn::UseTree::Path(path) => self.import(&join(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.path(join(&name.ident)),
            syn::UseTree::Rename(name) => self.path(join(&name.ident)),
            syn::UseTree::Glob(_) => self.path(format!("{prefix}::*")),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.import(prefix, item)),
        }
    }
}

impl<'a> Visit<'a> for Seen {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.function(&item.sig, item.block.span());
        visit::visit_item_fn(self, item);
    }
    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.function(&item.sig, item.block.span());
        visit::visit_impl_item_fn(self, item);
    }
    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        self.define(&item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }
    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        self.define(&item.ident);
        visit::visit_item_struct(self, item);
    }
    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        self.define(&item.ident);
        visit::visit_item_enum(self, item);
    }
    fn visit_variant(&mut self, item: &'a syn::Variant) {
        self.define(&item.ident);
        visit::visit_variant(self, item);
    }
    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        self.define(&item.ident);
        visit::visit_item_trait(self, item);
    }
    fn visit_item_type(&mut self, item: &'a syn::ItemType) {
        self.define(&item.ident);
        visit::visit_item_type(self, item);
    }
    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.define(&item.ident);
        visit::visit_item_const(self, item);
    }
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.define(&item.ident);
        let test = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
        };
        if item.content.is_some() && item.attrs.iter().any(test) {
            self.tests.push((item.span().start().line, item.span().end().line));
        }
        visit::visit_item_mod(self, item);
    }
    fn visit_field(&mut self, item: &'a syn::Field) {
        if let Some(name) = &item.ident {
            self.define(name);
        }
        visit::visit_field(self, item);
    }
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.import("", &item.tree);
    }
    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.path(names.join("::"));
        visit::visit_path(self, path);
    }
    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if attribute.path().is_ident("allow") {
            let lint = attribute.meta.require_list().map(|list| list.tokens.to_string());
            self.allows.push(lint.unwrap_or_default());
        }
        if attribute.path().is_ident("derive") {
            let derives = attribute
                .parse_args_with(syn::punctuated::Punctuated::<syn::Path, syn::Token![,]>::parse_terminated);
            for path in derives.into_iter().flatten() {
                self.visit_path(&path);
            }
        }
        visit::visit_attribute(self, attribute);
    }
    fn visit_expr_unsafe(&mut self, item: &'a syn::ExprUnsafe) {
        self.has_unsafe = true;
        visit::visit_expr_unsafe(self, item);
    }
    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        self.has_unsafe |= item.unsafety.is_some();
        visit::visit_item_impl(self, item);
    }
}
