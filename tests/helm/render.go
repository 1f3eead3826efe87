// Renders a chart without helm, for helm.py.
//
// What stands here for helm's own engine: Go's text/template with sprig's functions but env and expandenv, and helm's own include, tpl,
// required, fail, lookup (which finds nothing, as in `helm template`), toYaml, fromYaml, toJson and fromJson; missing keys are empty, or errors
// with -strict, as in `helm lint --strict`; values files are laid over values.yaml, and null takes a value away; a file of templates whose name
// begins with _ makes no output. Sprig is 3.2.3, the YAML is sigs.k8s.io/yaml, both of Debian: helm has the same ones, of other versions.
// A function that is not here is an error, so the chart can't use one unseen.
//
// Of .Files it has Get. What is to be random is the same letter.
//
// What does not stand here: --set, subcharts, hooks, the order of installing, everything that asks a cluster, and the schema of values, which helm.py
// looks at, since helm does so before it renders. helm.py has Helm's own engine render the same, where it can be had, and compares.
//
// From a values file numbers are float64, in newer releases of helm json.Number, and int64 from --set: -numbers says as which the templates get
// them.
//
// Prints JSON: values, as the schema judges them; files, by the name of their template; error, in place of files.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type table = map[string]interface{}

type result struct {
	Values table             `json:"values"`
	Files  map[string]string `json:"files,omitempty"`
	Error  string            `json:"error,omitempty"`
}

// How deep one template may include others; helm allows a thousand.
const deepest = 100

func read(path string) (table, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found := table{}
	err = yaml.UnmarshalStrict(text, &found, func(d *json.Decoder) *json.Decoder { d.UseNumber(); return d })
	return found, err
}

// over lays what a user says over what there is: tables key by key, all else as a whole.
func over(below, above table) table {
	merged := table{}
	for key, value := range below {
		merged[key] = value
	}
	for key, value := range above {
		upper, isTable := value.(table)
		lower, wasTable := merged[key].(table)
		switch {
		case value == nil:
			delete(merged, key)
		case isTable && wasTable:
			merged[key] = over(lower, upper)
		default:
			merged[key] = value
		}
	}
	return merged
}

// numbers gives all numbers of a value the type that they have in helm.
func numbers(value interface{}, kind string) interface{} {
	switch value := value.(type) {
	case table:
		for key, inner := range value {
			value[key] = numbers(inner, kind)
		}
	case []interface{}:
		for at, inner := range value {
			value[at] = numbers(inner, kind)
		}
	case json.Number:
		whole, err := value.Int64()
		if kind == "int64" && err == nil {
			return whole
		}
		if kind != "json" {
			float, _ := value.Float64()
			return float
		}
	}
	return value
}

func toYaml(value interface{}) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

func fromYaml(text string) table {
	found := table{}
	if err := yaml.Unmarshal([]byte(text), &found); err != nil {
		found["Error"] = err.Error()
	}
	return found
}

func toJSON(value interface{}) string {
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return string(text)
}

func fromJSON(text string) table {
	found := table{}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		found["Error"] = err.Error()
	}
	return found
}

func required(warning string, value interface{}) (interface{}, error) {
	if value == nil || value == "" {
		return nil, fmt.Errorf("%s", warning)
	}
	return value, nil
}

func functions(all *template.Template) template.FuncMap {
	known := sprig.TxtFuncMap()
	delete(known, "env")
	delete(known, "expandenv")
	depth := 0
	known["include"] = func(name string, data interface{}) (string, error) {
		if depth++; depth > deepest {
			return "", fmt.Errorf("%s includes itself", name)
		}
		defer func() { depth-- }()
		var out bytes.Buffer
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	known["tpl"] = func(text string, data interface{}) (string, error) {
		inner, err := all.Clone()
		if err != nil {
			return "", err
		}
		inner, err = inner.New("tpl").Parse(text)
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		err = inner.Execute(&out, data)
		return strings.ReplaceAll(out.String(), "<no value>", ""), err
	}
	known["fail"] = func(message string) (string, error) { return "", fmt.Errorf("%s", message) }
	known["required"] = required
	// Keys that are the same each time can be compared.
	known["randAlphaNum"] = func(count int) string { return strings.Repeat("k", count) }
	known["lookup"] = func(_, _, _, _ string) table { return table{} }
	known["toYaml"], known["fromYaml"], known["toJson"], known["fromJson"] = toYaml, fromYaml, toJSON, fromJSON
	return known
}

// files is what templates call .Files: those of the chart's folder, by their path.
type files string

// Get gives the text of a file, or nothing where there is none.
func (chart files) Get(path string) string {
	text, _ := os.ReadFile(filepath.Join(string(chart), path))
	return string(text)
}

func render(chart string, context table, strict bool) (map[string]string, error) {
	all := template.New("chart")
	all.Option("missingkey=zero")
	if strict {
		all.Option("missingkey=error")
	}
	all.Funcs(functions(all))
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*.*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if _, err := all.New(filepath.Base(path)).Parse(string(text)); err != nil {
			return nil, err
		}
	}
	made := map[string]string{}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		context["Template"] = table{"Name": name, "BasePath": "templates"}
		var out bytes.Buffer
		if err := all.ExecuteTemplate(&out, name, context); err != nil {
			return nil, err
		}
		made[name] = strings.ReplaceAll(out.String(), "<no value>", "")
	}
	return made, nil
}

// metadata is what templates call .Chart, whose keys they write with capitals.
func metadata(chart string) (table, error) {
	said, err := read(filepath.Join(chart, "Chart.yaml"))
	capital := table{}
	for key, value := range said {
		capital[strings.ToUpper(key[:1])+key[1:]] = value
	}
	return capital, err
}

func run(chart, release, namespace, kind string, strict bool, valuesFiles []string) (found result) {
	values, err := table{}, error(nil)
	for _, path := range append([]string{filepath.Join(chart, "values.yaml")}, valuesFiles...) {
		above, failed := read(path)
		if failed != nil {
			err = failed
		}
		values = over(values, above)
	}
	about, failed := metadata(chart)
	if failed != nil {
		err = failed
	}
	if err == nil {
		// By way of its text, since templates may change what they are given.
		found.Values = values
		copied := table{}
		decoder := json.NewDecoder(strings.NewReader(toJSON(values)))
		decoder.UseNumber()
		if err = decoder.Decode(&copied); err == nil {
			context := table{
				"Values":       numbers(copied, kind),
				"Chart":        about,
				"Release":      table{"Name": release, "Namespace": namespace, "Service": "Helm", "IsInstall": true, "IsUpgrade": false, "Revision": 1},
				"Capabilities": table{"KubeVersion": table{"Version": "v1.25.0", "Major": "1", "Minor": "25"}},
			}
			context["Files"] = files(filepath.Join(chart))
			found.Files, err = render(chart, context, strict)
		}
	}
	if err != nil {
		found.Error = err.Error()
	}
	return found
}

func main() {
	chart := flag.String("chart", "", "its folder")
	release := flag.String("release", "pd-proxy", "name of the release")
	namespace := flag.String("namespace", "default", "its namespace")
	kind := flag.String("numbers", "float64", "float64, json or int64")
	strict := flag.Bool("strict", false, "missing values are errors")
	flag.Parse()
	encoder := json.NewEncoder(os.Stdout)
	if err := encoder.Encode(run(*chart, *release, *namespace, *kind, *strict, flag.Args())); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
