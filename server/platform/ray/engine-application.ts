// Our engine on cores of the cluster as an application of Serve.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { engineSources } from '../../../lib/engine-folders.ts'
import { root } from '../../../lib/root.ts'
import { type Application, ownPrefix, routeOf } from './applications.ts'
import { autoscalingConfig, type ReplicaPolicy } from './autoscaling-config.ts'
import { type CodePackage, packFolders } from './package.ts'

/** A file that each replica fetches before it takes requests, and compares with its hash. */
export interface ServedFile {
  /** The model's name in requests. */
  name: string
  url: string
  sha256: string
}

interface EngineApplication {
  /** Name of the deployment: unique, letters, digits and dashes. */
  id: string
  /** Made by `packEngine`. */
  working_dir: string
  /** The base, and the adapters on it that every replica loads, each with its own projector if it has one. */
  base: ServedFile
  /** With which the base reads pictures. */
  projector?: ServedFile
  adapters: (ServedFile & { projector?: ServedFile })[]
  policy: ReplicaPolicy
  /** Cores of a replica, and its threads. */
  cores: number
  /** The Node 24 of the cluster's machines. */
  node: string
  /** What requests must bring; only its hash goes to the cluster. */
  token: string
  /** What opens the files. */
  files_token?: string
  /** The header x-weights that a replica's engine must answer with before it takes requests. */
  weights?: string
  /** Where the service has the rows that a replica is compared by, and judges their scores: `/probe`, `/scores`. */
  service_url?: string
  /** When it was first written, in milliseconds. */
  written_at?: number
}

/** Our engine on cores: each replica starts one as its child. */
export function engineApplication({ id, working_dir, policy, ...app }: EngineApplication): Application {
  return {
    name: `${ownPrefix}${id}`,
    route_prefix: routeOf(id),
    import_path: 'engine.ray.replica:build',
    runtime_env: { working_dir },
    args: {
      base: app.base,
      ...(app.projector && { projector: app.projector }),
      adapters: app.adapters,
      threads: app.cores,
      node: app.node,
      token_sha256: createHash('sha256').update(app.token).digest('hex'),
      ...(app.files_token !== undefined && { files_token: app.files_token }),
      ...(app.weights !== undefined && { weights: app.weights }),
      ...(app.service_url !== undefined && { service_url: app.service_url }),
      ...(app.written_at !== undefined && { written_at: app.written_at }),
    },
    deployments: [
      {
        name: 'Engine',
        autoscaling_config: autoscalingConfig(policy),
        // The engine batches: requests beyond the target wait in the router, for a replica that is about to start.
        max_ongoing_requests: Math.max(policy.target_requests_per_replica * 2, 8),
        ray_actor_options: { num_cpus: app.cores },
        health_check_period_s: 5,
        health_check_timeout_s: 10,
        graceful_shutdown_timeout_s: 60,
      },
    ],
  }
}

/** The npm packages that the engine's files import when it starts. */
function enginePackages(): string[] {
  const sources = globSync(engineSources, { cwd: root }).map((file) => readFileSync(path.join(root, file), 'utf8'))
  const pattern = /(?:^(?:import|export) .*from |require\.resolve\()'([^'.][^']*)'/gm
  const imported = sources.flatMap((text) => [...text.matchAll(pattern)])
  const names = imported.map(([, name]) => name!).filter((name) => !name.startsWith('node:'))
  return [
    ...new Set(
      names.map((name) =>
        name
          .split('/')
          .slice(0, name.startsWith('@') ? 2 : 1)
          .join('/'),
      ),
    ),
  ]
}

/** A package and what it needs in turn, of those that are installed. */
function closure(name: string, names = new Set<string>()): Set<string> {
  if (names.has(name)) return names
  try {
    const file = path.join(root, 'node_modules', name, 'package.json')
    const { dependencies = {}, optionalDependencies = {} } = JSON.parse(readFileSync(file, 'utf8'))
    names.add(name)
    for (const dependency of Object.keys({ ...dependencies, ...optionalDependencies })) closure(dependency, names)
  } catch {
    // An optional package of another platform.
  }
  return names
}

/** The engine with its library and packages, for machines of this one's kind. */
export function packEngine(): Promise<CodePackage> {
  const packages = [...new Set(enginePackages().flatMap((name) => [...closure(name)]))].sort()
  return packFolders([
    { folder: root, patterns: [engineSources, 'engine/ray/*.py', 'package.json'], to: '' },
    { folder: path.join(root, '.local/llama/lib'), patterns: ['*.so'], to: '.local/llama/lib' },
    ...packages.map((name) => ({
      folder: path.join(root, 'node_modules', name),
      patterns: ['**/*.{js,cjs,mjs,json,node,wasm}', '**/*.so*'],
      to: `node_modules/${name}`,
    })),
  ])
}
