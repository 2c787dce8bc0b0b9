//go:build tools

// Kubernetes' own tests of clusters, and the program that runs several of them at once. `cargo xtask conformance`
// builds both.
package tools

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/e2e"
)
