// Runs one of the programs of Kubernetes, which its first argument names: those of a node, and the client.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func program(name string) *cobra.Command {
	switch name {
	case "apiserver":
		return apiserver.NewAPIServerCommand()
	case "manager":
		return manager.NewControllerManagerCommand()
	case "scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	}
	return nil
}

func main() {
	if len(os.Args) > 1 {
		// kubectl reads the arguments when its command is made.
		name := os.Args[1]
		os.Args = append([]string{filepath.Base(name)}, os.Args[2:]...)
		if command := program(name); command != nil {
			os.Exit(cli.Run(command))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: kubernetes apiserver|manager|scheduler|kubelet|kubectl ARGUMENT...")
	os.Exit(2)
}
