package tests_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	mdGo      = regexp.MustCompile("(?s)```go\n(.*?)```")
	mdFile    = regexp.MustCompile("`([a-z_]+/[a-z_/]+\\.(?:go|lua))(?::(Test[A-Za-z0-9]+))?`")
	notInLink = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// What the documents link to is there, down to the heading; so are the files and
// tests that they name; and their Go is Go.
func TestDocuments(t *testing.T) {
	links, named, code := 0, 0, 0
	for _, doc := range []string{"README.md", "README.zh-CN.md", "CHANGELOG.md", "docs/design.md", "docs/redis.md", "docs/mysql.md", "bench/README.md", "tests/README.md"} {
		text := readDoc(t, doc)
		for _, m := range mdLink.FindAllStringSubmatch(text, -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			links++
			if target = filepath.Join(filepath.Dir(doc), target); m[1][0] == '#' {
				target = doc
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			} else if heading != "" && !hasHeading(readDoc(t, target), heading) {
				t.Errorf("%s links to %s: there is no such heading", doc, m[1])
			}
		}
		for _, m := range mdFile.FindAllStringSubmatch(text, -1) {
			named++
			source, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(m[1])))
			if err != nil {
				t.Errorf("%s names %s: %v", doc, m[1], err)
			} else if m[2] != "" && !strings.Contains(string(source), "\nfunc "+m[2]+"(") {
				t.Errorf("%s names %s in %s, which has no such test", doc, m[2], m[1])
			}
		}
		for _, m := range mdGo.FindAllStringSubmatch(text, -1) {
			code++
			if _, err := parser.ParseFile(token.NewFileSet(), doc, "package p\nfunc f() {\n"+m[1]+"\n}", 0); err != nil {
				t.Errorf("code in %s: %v", doc, err)
			}
		}
	}
	if links < 20 || named < 100 || code < 4 {
		t.Errorf("%d links, %d names, %d pieces of code: not all were found", links, named, code)
	}
}

// The permissions stand in two documents, of which redisstore's tests know one.
func TestDocumentedPermissions(t *testing.T) {
	line := regexp.MustCompile(`(?m)^ACL SETUSER \S+ on \S+ (.*)$`).FindStringSubmatch(readDoc(t, "docs/redis.md"))
	if line == nil {
		t.Fatal("docs/redis.md has no line of permissions")
	}
	comment := strings.ReplaceAll(readDoc(t, "redisstore/doc.go"), "//", "")
	_, comment, _ = strings.Cut(comment, `namespace "prod" needs`)
	comment, _, _ = strings.Cut(comment, "of which")
	if got, want := strings.Fields(line[1]), strings.Fields(comment); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("docs/redis.md: %q\nredisstore/doc.go: %q", got, want)
	}
}

func readDoc(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hasHeading tells whether a text has the heading that a link leads to.
func hasHeading(text, link string) bool {
	for _, m := range mdHeading.FindAllStringSubmatch(text, -1) {
		if strings.ReplaceAll(notInLink.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == link {
			return true
		}
	}
	return false
}
