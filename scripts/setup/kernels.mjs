// The engine's own kernels (engine/kernels) and the trainer's (trainer/kernels), where there is a C++ compiler: without
// them they compute with their libraries'.
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { ask, run } from './process.mjs'
import { print } from './progress.mjs'
import { fileHash, local, root, step } from './state.mjs'

// `features`: what the kernels need of a processor. They ask for it before they are used, or have another way.
const engineKind = {
  folder: 'engine/kernels',
  // No fused multiply and add but where it is written: one token must give the same numbers in every kernel.
  more: ['-ffp-contract=off'],
  // The library calls them to its end, also when nobody here refers to their file any more. The names of ggml that they
  // use are found in the library, which the engine opens before them.
  linked: ['-Wl,-z,nodelete'],
  otherwise: "The engine computes with its library's kernels",
}
// A file for each set of instructions, as bundles and images run on other machines. The engine takes the first that its
// processor has.
const engines = [
  {
    ...engineKind,
    name: 'kernels-avx512',
    what: "the engine's kernels for AVX-512",
    file: () => local('llama/lib/libtunery-kernels-avx512.so'),
    features: ['avx512f', 'avx512bw', 'avx512dq', 'avx512vl', 'avx512vnni', 'fma', 'f16c'],
    more: [...engineKind.more, '-DKERNELS_AVX512'],
  },
  {
    ...engineKind,
    name: 'kernels-avx2',
    what: "the engine's kernels for AVX2",
    file: () => local('llama/lib/libtunery-kernels-avx2.so'),
    features: ['avx2', 'fma', 'f16c'],
  },
]
const trainer = {
  name: 'trainer-kernels',
  what: "the trainer's kernels",
  folder: 'trainer/kernels',
  file: () => local('kernels/libtunery-trainer.so'),
  features: ['avx512f', 'avx512bw', 'avx512dq', 'avx512vl', 'avx512bf16', 'fma', 'amx-tile', 'amx-bf16'],
  // torch has loaded a libgomp of this name, so that both share its threads.
  more: [],
  linked: ['-fopenmp'],
  otherwise: 'The trainer computes with torch alone',
}

/** Up to 15 seconds of one core each. A compiler that fails is no reason to do without an engine or a trainer. */
export const engineKernels = (options) => compileAll([ownEngine()], options)
/** Those for other machines, which what is written here may run on. */
export const otherEngineKernels = (options) =>
  compileAll(
    engines.filter((engine) => engine !== ownEngine()),
    options,
  )

/** The one that the engine takes on this machine. */
function ownEngine() {
  const features = new Set(/^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]?.split(' '))
  // Linux writes avx512_vnni.
  const has = (feature) => features.has(feature) || features.has(feature.replace('avx512', 'avx512_'))
  return engines.find((engine) => engine.features.every(has)) ?? engines[0]
}

async function compileAll(compiled, options) {
  let count = 0
  for (const engine of compiled) if (await compile(engine, options)) count++
  return count > 0
}
export const trainerKernels = (options) => compile(trainer, options)

const flagsOf = ({ features, more }) => ['-O3', '-std=c++17', ...more, ...features.map((feature) => `-m${feature}`)]
/** For tests, which compile parts of them: the flags of each set of instructions. */
export const engineFlags = { avx512: flagsOf(engines[0]), avx2: flagsOf(engines[1]) }

async function compile(part, options) {
  const { name, what, folder, file, linked, otherwise } = part
  if (process.arch !== 'x64' || !existsSync(path.join(root, folder)) || ask('g++', ['--version']) === undefined)
    return false
  const flags = [...flagsOf(part), '-fPIC', '-shared', '-fvisibility=hidden', ...linked]
  const sources = readdirSync(path.join(root, folder))
    .filter((source) => /\.(cpp|h)$/.test(source))
    .sort()
    .map((source) => `${folder}/${source}`)
  return step(name, what, [flags, sources.map(fileHash)], [file()], options, async () => {
    const fresh = `${file()}.new`
    mkdirSync(path.dirname(fresh), { recursive: true })
    try {
      await run('g++', [...flags, '-o', fresh, ...sources.filter((source) => source.endsWith('.cpp'))], {
        cwd: root,
        what: `compiling ${what}`,
      })
      // A process that runs keeps the old file.
      renameSync(fresh, file())
    } catch (error) {
      rmSync(file(), { force: true })
      print(`  ${otherwise}: ${error.message}`)
    }
  })
}
