// Installs what this machine needs: npm packages, Node 24 if the machine's own is older, the engine's library for this
// platform, the converters, a Python environment, the default model and the dashboard. Must run on Node 20 with
// built-in modules only. Run again without changes, it only compares stamps.
//
//   node scripts/setup.mjs [--dev] [--force] [--with vision,llama-server,vllm,…]
//   node scripts/setup.mjs --only npm,engine,…    only these steps, for images that are built in layers
//   node scripts/setup.mjs --serving              only what serving needs, for `npm start`; lists the rest as pending
//   node scripts/setup.mjs --training --events    the rest, for the server: prints JSON lines, ends with its stdin
//
// TUNERY_PYTHON: the Python to use. TUNERY_GPU=auto|cuda|vulkan|none: the engine's GPU build.
import { existsSync, mkdirSync } from 'node:fs'
import os from 'node:os'
import { engineKernels, otherEngineKernels, trainerKernels } from './setup/kernels.mjs'
import { converters, engine, nodeRuntime, npmPackages, vocabularies } from './setup/packages.mjs'
import { peers } from './setup/peers.mjs'
import { killCommands, need, SetupError } from './setup/process.mjs'
import { print, printEvents, report } from './setup/progress.mjs'
import {
  defaultModel,
  embeddingModel,
  findPython,
  pythonDev,
  pythonEnvironment,
  pythonOnnx,
  servedModel,
  tracker,
  trackerDev,
} from './setup/python.mjs'
import { isLocked, local, withLock, writePending } from './setup/state.mjs'
import { needCompiler, vision, visionIfPossible } from './setup/vision.mjs'
import { chromium, chromiumIfPossible, web } from './setup/web.mjs'

const started = Date.now()
const dev = process.argv.includes('--dev')
const force = process.argv.includes('--force')
const named = (option) =>
  process.argv.flatMap((word, index) => (process.argv[index - 1] === option ? word.split(',') : []))
const extra = named('--with')
const only = named('--only')
const serving = process.argv.includes('--serving')
const training = process.argv.includes('--training')

const parts = {
  npm: [npmPackages],
  node: [nodeRuntime],
  engine: [engine, engineKernels],
  converters: [converters, ...(dev ? [vocabularies] : [])],
  python: [pythonEnvironment, pythonOnnx, ...(dev ? [pythonDev, trackerDev] : []), tracker],
  'trainer-kernels': [trainerKernels],
  'other-kernels': [otherEngineKernels],
  models: [servedModel, defaultModel, embeddingModel],
  web: [web],
}
const servingSteps = [...parts.npm, ...parts.node, ...parts.engine, servedModel, ...parts.web]
const trainingParts = ['converters', 'python', 'trainer-kernels', 'models', 'other-kernels']
const trainingSteps = [
  ...parts.converters,
  ...parts.python,
  trainerKernels,
  defaultModel,
  embeddingModel,
  otherEngineKernels,
]

async function runSteps(steps) {
  let count = 0
  for (const step of steps) if (await step({ force, serving })) count++
  return count
}

/**
 * Runs what serving needs: downloads beside npm, which is busy unpacking. After a failure the others run to their
 * ends, as finished steps are kept.
 */
async function runServing() {
  const node = runSteps(parts.node)
  const results = await Promise.allSettled([
    node,
    runSteps(parts.engine),
    // The model downloads while kernels are compiled.
    runSteps([servedModel]),
    runSteps(parts.npm).then(async (count) => {
      await node
      return count + (await runSteps(parts.web))
    }),
  ])
  const failed = results.find(({ status }) => status === 'rejected')
  if (failed) throw failed.reason
  return results.reduce((sum, { value }) => sum + value, 0)
}

/** The steps among these that are not done. */
async function pendingOf(steps) {
  const plan = []
  for (const step of steps) await step({ plan, serving })
  return plan
}
const stepsOf = (names) => names.flatMap((name) => parts[name])

if (process.argv.includes('--events')) {
  printEvents()
  // Behind the answers of the server that started it, and not longer than that server.
  os.setPriority(15)
  const stop = () => {
    killCommands()
    process.exit(1)
  }
  process.on('SIGTERM', stop)
  process.stdin.on('end', stop).on('error', stop).resume().unref?.()
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
  const wanted = only.length > 0 ? only : training ? trainingParts : Object.keys(parts)
  mkdirSync(local(), { recursive: true })
  // What a server of this checkout installs meanwhile need not be waited for.
  if (serving && !force && isLocked() && (await pendingOf(servingSteps)).length === 0) process.exit(0)
  // Check for missing programs before hundreds of megabytes are downloaded.
  const lacks = (name) => wanted.includes(name) && (force || !existsSync(local('stamps', name)))
  if (lacks('npm'))
    need(
      'npm',
      'Install it with your package manager (Debian and Ubuntu: `apt-get install npm`). Node from nodejs.org has it.',
    )
  if (!serving && lacks('converters'))
    need('git', 'Install it with your package manager (Debian and Ubuntu: `apt-get install git`).')
  if (extra.includes('vision') && (force || !existsSync(local('stamps/vision')))) needCompiler()
  // Serving needs it for the default model alone.
  if (serving ? force || !existsSync(local('stamps/served-model')) : lacks('python')) findPython()
  const steps = [
    ...stepsOf(wanted),
    ...(extra.includes('chromium') ? [chromium] : dev ? [chromiumIfPossible] : []),
    ...(extra.includes('vision') ? [vision] : dev ? [visionIfPossible] : []),
    ...peers(extra.filter((name) => name !== 'chromium' && name !== 'vision')),
  ]
  const did = await withLock(async () => {
    // Images in layers know no server that continues what is pending.
    if (only.length > 0) return runSteps(steps)
    writePending(await pendingOf(trainingSteps))
    const count = await (serving ? runServing() : runSteps(steps))
    if (!serving) writePending([])
    return count
  })
  if (did > 0)
    print(
      `Set-up finished in ${((Date.now() - started) / 1000).toFixed(0)} s; it installed into .local and node_modules.`,
    )
} catch (error) {
  if (!(error instanceof SetupError)) {
    report({ status: 'failed', message: error.message })
    throw error
  }
  report({ status: 'failed', message: error.message, hint: error.hint })
  console.error(`\nSet-up cannot continue: ${error.message}\n${error.hint ? `What to do: ${error.hint}\n` : ''}`)
  process.exit(1)
}
