// libmtmd, the part of llama.cpp that reads pictures, for the engine. The library's npm packages come without it, so it
// is compiled from the source of the converters, whose version is that of the library, and linked with the library.
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { converterSources, unpack } from './packages.mjs'
import { ask, need, run, SetupError } from './process.mjs'
import { local, pins, step } from './state.mjs'

const platform = `${process.platform}-${process.arch}`
const hint =
  'Install a C++ compiler with your package manager (Debian and Ubuntu: `apt-get install g++`), ' +
  'then run `npm run setup -- --with vision`.'

const file = () => local('llama/lib/libmtmd.so')
/** For the test of the engine's structs. */
const header = () => local('llama/mtmd/mtmd.h')

/**
 * Corrections of the source, so that pictures become what transformers makes of them: Qwen's are stretched to their size
 * in patches, not padded, and a size in the middle between two is rounded to the even number of patches.
 */
const corrections = [
  {
    name: 'clip.cpp',
    from: 'hparams.n_merge = 2; // default value for Qwen 2 and 2.5\n',
    to: 'hparams.n_merge = 2;\n                        hparams.image_resize_pad = PAD_NONE;\n',
  },
  {
    name: 'mtmd-image.cpp',
    from: 'std::round(x / static_cast<float>(f))',
    to: 'std::nearbyint(x / static_cast<float>(f))',
  },
]

/** Throws where this step is to run and its compiler is missing. */
export function needCompiler() {
  need('g++', hint)
}

/** A minute of one core; a few seconds on a machine with many. */
export const vision = (options) =>
  step(
    'vision',
    "the engine's library for pictures, built from source (half a minute on 2 cores)",
    [pins.converters, pins.engine[platform], corrections],
    [file(), header()],
    options,
    async () => {
      needCompiler()
      need('git', 'Install it with your package manager (Debian and Ubuntu: `apt-get install git`).')
      await unpack(pins.converters, async (folder) => {
        const source = path.join(folder, 'source')
        await converterSources(folder, source, ['tools/mtmd', 'include', 'ggml/include'])
        await build(path.join(source, 'tools/mtmd'), path.join(folder, 'objects'))
      })
    },
  )

/** The same for `npm test`, which says in a line that it goes on without. */
export async function visionIfPossible(options) {
  if (!existsSync(file()) && ask('g++', ['--version']) === undefined) {
    if (!options.plan) console.log(`• tests with pictures are skipped: there is no g++ here. ${hint}`)
    return false
  }
  return vision(options)
}

async function build(source, objects) {
  mkdirSync(objects)
  for (const { name, from, to } of corrections) {
    const text = readFileSync(path.join(source, name), 'utf8')
    if (text.split(from).length !== 2)
      throw new SetupError(`The source of llama.cpp has changed: ${name} has not once '${from.trim()}'.`)
    writeFileSync(path.join(source, name), text.replace(from, to))
  }
  // Without the helper and the command line: they decode files of pictures and sounds, which the engine does not let
  // a library in C do.
  const files = [
    ...['mtmd.cpp', 'mtmd-audio.cpp', 'mtmd-image.cpp', 'clip.cpp'],
    ...readdirSync(path.join(source, 'models'))
      .filter((name) => name.endsWith('.cpp'))
      .map((name) => `models/${name}`),
  ]
  const includes = ['.', '../../include', '../../ggml/include'].flatMap((folder) => ['-I', folder])
  const defines = ['LLAMA_BUILD', 'LLAMA_SHARED', 'GGML_SHARED', 'GGML_BACKEND_SHARED'].map((name) => `-D${name}`)
  const flags = ['-O2', '-fPIC', '-std=c++17', '-fvisibility=hidden', ...defines, ...includes]
  const waiting = files.toReversed()
  const compileRest = async () => {
    for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
      const object = path.join(objects, `${name.replaceAll('/', '_')}.o`)
      await run('g++', [...flags, '-c', name, '-o', object], { cwd: source, what: `compiling ${name}` })
    }
  }
  await Promise.all(Array.from({ length: os.availableParallelism() }, compileRest))
  const library = local('llama/lib')
  const linked = ['llama', 'ggml', 'ggml-base'].map((name) => path.join(library, nameOf(library, name)))
  const fresh = path.join(objects, 'libmtmd.so')
  const inputs = readdirSync(objects).map((name) => path.join(objects, name))
  await run('g++', ['-shared', '-o', fresh, ...inputs, ...linked, '-Wl,-rpath,$ORIGIN', '-Wl,--no-undefined'], {
    what: 'linking libmtmd',
  })
  mkdirSync(path.dirname(header()), { recursive: true })
  cpSync(path.join(source, 'mtmd.h'), header())
  // An engine that runs keeps the old file.
  rmSync(file(), { force: true })
  renameSync(fresh, file())
}

/** The file of a library that engine/llama/library.ts opens: of a CPU and a GPU build, the one with the shorter name. */
function nameOf(folder, name) {
  const pattern = new RegExp(`^lib${name}(\\.cuda)?(\\.v?[0-9.]+)?\\.so$`)
  const [found] = readdirSync(folder)
    .filter((each) => pattern.test(each))
    .sort((one, other) => one.length - other.length)
  if (!found) throw new SetupError(`lib${name}.so is missing in ${folder}.`, 'Run `npm run setup -- --force`.')
  return found
}
