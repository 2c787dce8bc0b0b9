// Reads YAML as kubectl does. The tests of nodlet's reader compare it with the answers of this program, which
// `cargo xtask check unit` builds; after a change, the release in `xtask/build/src/go.rs` is another one.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"
)

// Answers each line, a document in base64, with a line: `+` and the document in JSON, or `-` and the error.
func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := bufio.NewWriter(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		if err != nil {
			fail(err)
		}
		text, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(line)))
		if err != nil {
			fail(err)
		}
		json, err := yaml.YAMLToJSON(text)
		if err != nil {
			fmt.Fprintf(answers, "-%q\n", err.Error())
		} else {
			fmt.Fprintf(answers, "+%s\n", json)
		}
		if err := answers.Flush(); err != nil {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
