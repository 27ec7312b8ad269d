// Installs what this machine needs: npm packages, Node 24 if the machine's own is older, the engine's library for this
// platform, the converters, a Python environment and the default model. Must run on Node 20 with built-in modules only.
// Run again without changes, it only compares stamps.
//
//   node scripts/setup.mjs [--dev] [--force] [--with llama-server,vllm,…]
//   node scripts/setup.mjs --only npm,engine,…    only these steps, for images that are built in layers
//
// TUNERY_PYTHON: the Python to use. TUNERY_GPU=auto|cuda|vulkan|none: the engine's GPU build.
import { existsSync, mkdirSync } from 'node:fs'
import { converters, engine, nodeRuntime, npmPackages } from './setup/packages.mjs'
import { peers } from './setup/peers.mjs'
import { need, SetupError } from './setup/process.mjs'
import {
  defaultModel,
  embeddingModel,
  findPython,
  pythonDev,
  pythonEnvironment,
  pythonOnnx,
  tracker,
  trackerDev,
} from './setup/python.mjs'
import { local, withLock } from './setup/state.mjs'
import { chromium, web } from './setup/web.mjs'

const started = Date.now()
const dev = process.argv.includes('--dev')
const force = process.argv.includes('--force')
const named = (option) =>
  process.argv.flatMap((word, index) => (process.argv[index - 1] === option ? word.split(',') : []))
const extra = named('--with')
const only = named('--only')

const parts = {
  npm: [npmPackages],
  node: [nodeRuntime],
  engine: [engine],
  converters: [converters],
  python: [pythonEnvironment, pythonOnnx, ...(dev ? [pythonDev, trackerDev] : []), tracker],
  models: [defaultModel, embeddingModel],
  web: [web],
}

try {
  if (process.platform !== 'linux' || !['x64', 'arm64'].includes(process.arch))
    throw new SetupError(
      `Tunery's set-up supports Linux on x64 and arm64; this is ${process.platform} on ${process.arch}.`,
      'Run it on a Linux machine or in a Linux container.',
    )
  if (Number(process.versions.node.split('.')[0]) < 20)
    throw new SetupError(
      `Node ${process.versions.node} is too old to run the set-up.`,
      'Install Node 20 or newer; set-up installs the Node 24 that Tunery runs on.',
    )
  const unknown = only.filter((name) => !parts[name])
  if (unknown.length > 0)
    throw new SetupError(
      `there is no step '${unknown[0]}'.`,
      `--only takes ${Object.keys(parts).join(', ')}, separated by commas.`,
    )
  const wanted = only.length > 0 ? only : Object.keys(parts)
  mkdirSync(local(), { recursive: true })
  // Check for missing programs before hundreds of megabytes are downloaded.
  const lacks = (name) => wanted.includes(name) && (force || !existsSync(local('stamps', name)))
  if (lacks('npm'))
    need(
      'npm',
      'Install it with your package manager (Debian and Ubuntu: `apt-get install npm`). Node from nodejs.org has it.',
    )
  if (lacks('converters'))
    need('git', 'Install it with your package manager (Debian and Ubuntu: `apt-get install git`).')
  if (lacks('python')) findPython()
  const steps = [
    ...wanted.flatMap((name) => parts[name]),
    ...(extra.includes('chromium') ? [chromium] : []),
    ...peers(extra.filter((name) => name !== 'chromium')),
  ]
  const did = await withLock(async () => {
    let count = 0
    for (const step of steps) if (await step({ force })) count++
    return count
  })
  if (did > 0)
    console.log(
      `Set-up finished in ${((Date.now() - started) / 1000).toFixed(0)} s; it installed into .local and node_modules.`,
    )
} catch (error) {
  if (!(error instanceof SetupError)) throw error
  console.error(`\nSet-up cannot continue: ${error.message}\n${error.hint ? `What to do: ${error.hint}\n` : ''}`)
  process.exit(1)
}
