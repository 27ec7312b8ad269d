// Brings what this machine needs and nothing else: npm packages, Node 24 where the machine's own is older, the engine's
// library for this platform, the converters, a Python environment, the default model. Written for the oldest Node that
// may start it (20), with nothing but built-ins, since nothing else is there yet. Run again with nothing changed, it
// only compares stamps.
//
//   node scripts/setup.mjs [--dev] [--force] [--with llama-server,vllm,…]
//   node scripts/setup.mjs --only npm,engine,…    some steps alone, for images that are built in layers
//
// TUNERY_PYTHON names the Python to use; TUNERY_GPU=auto|cuda|vulkan|none chooses the engine's GPU build.
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
}

try {
  if (process.platform !== 'linux' || !['x64', 'arm64'].includes(process.arch))
    throw new SetupError(
      `Tunery's set-up knows Linux on x64 and arm64; this is ${process.platform} on ${process.arch}.`,
      'Run it on a Linux machine or in a Linux container.',
    )
  if (Number(process.versions.node.split('.')[0]) < 20)
    throw new SetupError(
      `Node ${process.versions.node} is too old to run the set-up.`,
      'Install Node 20 or newer; Tunery brings the Node 24 it runs on by itself.',
    )
  const unknown = only.filter((name) => !parts[name])
  if (unknown.length > 0)
    throw new SetupError(
      `there is no step '${unknown[0]}'.`,
      `--only takes ${Object.keys(parts).join(', ')}, with commas between.`,
    )
  const wanted = only.length > 0 ? only : Object.keys(parts)
  mkdirSync(local(), { recursive: true })
  // What is missing is told before hundreds of megabytes are fetched, not after.
  const lacks = (name) => wanted.includes(name) && (force || !existsSync(local('stamps', name)))
  if (lacks('npm'))
    need(
      'npm',
      'Install it with your package manager (Debian and Ubuntu: `apt-get install npm`); it comes with Node from nodejs.org too.',
    )
  if (lacks('converters'))
    need('git', 'Install it with your package manager (Debian and Ubuntu: `apt-get install git`).')
  if (lacks('python')) findPython()
  const steps = [...wanted.flatMap((name) => parts[name]), ...peers(extra)]
  const did = await withLock(async () => {
    let count = 0
    for (const step of steps) if (await step({ force })) count++
    return count
  })
  if (did > 0)
    console.log(
      `Set-up finished in ${((Date.now() - started) / 1000).toFixed(0)} s; everything it brought is in .local and node_modules.`,
    )
} catch (error) {
  if (!(error instanceof SetupError)) throw error
  console.error(`\nSet-up cannot go on: ${error.message}\n${error.hint ? `What to do: ${error.hint}\n` : ''}`)
  process.exit(1)
}
