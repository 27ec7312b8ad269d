// Helm and Kubernetes' schemas, as libraries (`node scripts/setup.mjs --with kubernetes`).
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'

const python = path.join(root, '.local/peers/kubernetes/bin/python')

/** Options of a test with Helm: skipped, with what to do, where it is not installed. */
export const helmTest = {
  skip: existsSync(python) ? false : 'no Helm library: node scripts/setup.mjs --with kubernetes',
}

const kubernetesVersions = ['1.31', '1.34', '1.37']
export const chartFolder = (name: string) => path.join(root, 'deploy/helm', name)
export const previousChart = (name: string) => path.join(root, `tests/fixtures/helm/${name}-0.1.0.tgz`)

export interface Manifest {
  apiVersion: string
  kind: string
  metadata: { name: string; labels?: Record<string, string>; annotations?: Record<string, string> }
  // biome-ignore lint/suspicious/noExplicitAny: a manifest has the form of its kind
  spec: any
}
export interface Job {
  chart: string
  values: object
  name?: string
  upgrade?: boolean
  /** False: only rendered, which takes a tenth of the time; `lint` and `problems` stay empty. */
  checked?: boolean
}
export interface Rendered {
  /** Warnings and errors of `helm lint --strict`. */
  lint: string[]
  /** Why the values were refused. */
  error?: string
  manifests: Manifest[]
  notes: string[]
  /** What Kubernetes' schemas say, of each version. */
  problems: string[]
}

export function render(jobs: Job[]): Rendered[] {
  const input = JSON.stringify(jobs.map((job) => ({ checked: true, ...job, versions: kubernetesVersions })))
  const output = execFileSync(python, [path.join(root, 'tests/support/helm.py')], { input, maxBuffer: 1e9 })
  return JSON.parse(output.toString())
}

export const find = ({ manifests }: Rendered, kind: string, name: string): Manifest => {
  const match = manifests.find((manifest) => manifest.kind === kind && manifest.metadata.name === name)
  if (!match)
    throw new Error(
      `no ${kind} ${name} among ${manifests.map((manifest) => `${manifest.kind} ${manifest.metadata.name}`)}`,
    )
  return match
}

/** The pod templates of a manifest, with what they belong to. */
export function podSpecs({ kind, metadata, spec }: Manifest) {
  if (kind === 'RayCluster')
    return [spec.headGroupSpec, ...spec.workerGroupSpecs].map(({ template }) => ({
      name: `${kind} ${metadata.name}`,
      pod: template.spec,
    }))
  return spec?.template?.spec ? [{ name: `${kind} ${metadata.name}`, pod: spec.template.spec }] : []
}
