// libmtmd, the part of llama.cpp that reads pictures, for the engine. The library's npm packages come without it, so it
// is compiled from the source of the converters, whose version is that of the library, and linked with the library.
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { compileVision, isSource } from './compile-vision.mjs'
import { converterSources, unpack } from './packages.mjs'
import { ask, need, run, SetupError } from './process.mjs'
import { fileHash, local, pins, root, step } from './state.mjs'

const platform = `${process.platform}-${process.arch}`
const hint =
  'Install a C++ compiler with your package manager (Debian and Ubuntu: `apt-get install g++`), ' +
  'then run `npm run setup -- --with vision`.'

const file = () => local('llama/lib/libmtmd.so')
/** For the test of the engine's structs. */
const header = () => local('llama/mtmd/mtmd.h')
/** The corrected source, for bundles. */
const bundled = () => local('llama/mtmd/source/LICENSE')

/** Kernels of our own: products and attention in bfloat16 (docs/decisions/031-vision-serving.md). */
const kernelFiles = [
  'scripts/setup/vision/bf16.h',
  'scripts/setup/vision/bf16.cpp',
  'engine/kernels/bfloat16.h',
  'engine/kernels/lanes.h',
]

/**
 * Corrections of the source, so that pictures become what transformers makes of them: Qwen's are stretched to their
 * size in patches, and Gemma's to a square, not padded; and a size in the middle between two is rounded to the even
 * number of patches. The others let the families that are tested use our kernels.
 */
const corrections = [
  {
    name: 'clip.cpp',
    from: 'hparams.n_merge = 2; // default value for Qwen 2 and 2.5\n',
    to: 'hparams.n_merge = 2;\n                        hparams.image_resize_pad = PAD_NONE;\n',
  },
  {
    name: 'clip.cpp',
    from: 'hparams.n_merge = 4;\n                        hparams.image_resize_algo = RESIZE_ALGO_BILINEAR;\n',
    to:
      'hparams.n_merge = 4;\n                        hparams.image_resize_algo = RESIZE_ALGO_BILINEAR;\n' +
      '                        hparams.image_resize_pad = PAD_NONE;\n',
  },
  {
    name: 'mtmd-image.cpp',
    from: 'std::round(x / static_cast<float>(f))',
    to: 'std::nearbyint(x / static_cast<float>(f))',
  },
  { name: 'clip.cpp', from: '#include "clip.h"\n', to: '#include "clip.h"\n#include "bf16.h"\n' },
  {
    name: 'clip.cpp',
    from: '    return ggml_mul_mat(ctx0, w, x);\n}',
    to: `    const bool is_tested = proj_type == PROJECTOR_TYPE_IDEFICS3 || proj_type == PROJECTOR_TYPE_QWEN2VL ||
                           proj_type == PROJECTOR_TYPE_QWEN25VL;
    ggml_tensor * fast = is_tested ? bf16_linear(ctx0, w, x) : nullptr;
    return fast ? fast : ggml_mul_mat(ctx0, w, x);\n}`,
  },
  {
    name: 'clip.cpp',
    from: '    ggml_tensor * cur;\n\n    if (flash_attn_type == CLIP_FLASH_ATTN_TYPE_ENABLED) {',
    to: `    ggml_tensor * cur = sinks ? nullptr : bf16_attention(ctx0, wo, q_cur, k_cur, v_cur, kq_mask, kq_scale);\n
    if (cur) {
    } else if (flash_attn_type == CLIP_FLASH_ATTN_TYPE_ENABLED) {`,
  },
  {
    name: 'clip.cpp',
    from: '                cur = ggml_gelu(ctx0, cur);',
    to: `                ggml_tensor * fast = bf16_gelu(ctx0, up, cur);
                cur = fast ? fast : ggml_gelu(ctx0, cur);`,
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
    [pins.converters, pins.engine[platform], corrections, kernelFiles.map(fileHash)],
    [file(), header(), bundled()],
    options,
    async () => {
      needCompiler()
      need('git', 'Install it with your package manager (Debian and Ubuntu: `apt-get install git`).')
      await unpack(pins.converters, async (folder) => {
        const source = path.join(folder, 'source')
        await converterSources(folder, source, ['tools/mtmd', 'include', 'ggml/include', 'LICENSE'])
        await build(folder, source)
      })
    },
  )

/** The same for `npm test`, which says in a line that it continues without. */
export async function visionIfPossible(options) {
  if (!existsSync(file()) && ask('g++', ['--version']) === undefined) {
    if (!options.plan) console.log(`• tests with pictures are skipped: there is no g++ here. ${hint}`)
    return false
  }
  return vision(options)
}

async function build(folder, source) {
  const mtmd = path.join(source, 'tools/mtmd')
  for (const { name, from, to } of corrections) {
    const text = readFileSync(path.join(mtmd, name), 'utf8')
    if (text.split(from).length !== 2)
      throw new SetupError(`The source of llama.cpp has changed: ${name} has not once '${from.trim()}'.`)
    writeFileSync(path.join(mtmd, name), text.replace(from, to))
  }
  for (const name of kernelFiles) cpSync(path.join(root, name), path.join(mtmd, path.basename(name)))
  await compileVision({ source, objects: path.join(folder, 'objects'), libraries: [local('llama/lib')], run })
  rmSync(local('llama/mtmd'), { recursive: true, force: true })
  mkdirSync(local('llama/mtmd'), { recursive: true })
  const isKept = (name) => statSync(name).isDirectory() || isSource(name) || path.basename(name) === 'LICENSE'
  cpSync(source, local('llama/mtmd/source'), { recursive: true, filter: isKept })
  cpSync(path.join(mtmd, 'mtmd.h'), header())
}
