// XGrammar, which is compiled to WebAssembly in one script. It is loaded in worker threads only: everything in it
// blocks.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname } from 'node:path'

type Disposable = { dispose(): void }
export type CompiledGrammar = Disposable
export type Matcher = Disposable & {
  acceptToken(token: number): boolean
  getNextTokenBitmask(): Promise<Int32Array>
  isTerminated(): boolean
  reset(): void
}
export type Compiler = Disposable & { compileGrammar(grammar: Disposable): Promise<CompiledGrammar> }

export type XGrammar = {
  Grammar: { fromEBNF(ebnf: string): Promise<Disposable>; fromStructuralTag(tag: object): Promise<Disposable> }
  TokenizerInfo: {
    createTokenizerInfo(
      vocab: string[],
      type: 'byte_level',
      prependSpace: boolean,
      size: number,
      stopTokens: number[],
    ): Promise<Disposable>
  }
  GrammarCompiler: { createGrammarCompiler(info: Disposable, cache: boolean): Promise<Compiler> }
  GrammarMatcher: { createGrammarMatcher(grammar: CompiledGrammar): Promise<Matcher> }
}

// The types of Node leave WebAssembly to those of browsers; this is what is used of it.
type Memory = { readonly buffer: ArrayBuffer; grow(pages: number): number }
type Instantiated = { instance: { exports: Record<string, unknown> } }
type Wasm = { Memory: new () => Memory; instantiate(code: unknown, imports: unknown): Promise<Instantiated> }
const { WebAssembly: wasm } = globalThis as unknown as { WebAssembly: Wasm }

/**
 * Loads XGrammar with a memory of its own, which may grow to `memory_bytes`; beyond that its next allocation aborts it,
 * for good.
 */
export function loadXGrammar(memory_bytes: number): { xgrammar: XGrammar; memoryBytes: () => number } {
  const require = createRequire(import.meta.url)
  const file = require.resolve('@mlc-ai/web-xgrammar')
  let memory: Memory | undefined
  // The script keeps its memory to itself; it is caught here as it is made, to be bounded and measured.
  const bounded = Object.create(wasm, {
    instantiate: {
      value: async (code: unknown, imports: unknown) => {
        const made = await wasm.instantiate(code, imports)
        memory = Object.values(made.instance.exports).find((one) => one instanceof wasm.Memory)
        if (memory) boundMemory(memory, memory_bytes)
        return made
      },
    },
  })
  // The package calls itself a module but holds a CommonJS script, which neither import nor require can load.
  const exports = {} as XGrammar
  const script = new Function(
    'exports',
    'module',
    'require',
    '__filename',
    '__dirname',
    'WebAssembly',
    `${readFileSync(file, 'utf8')}\n//# sourceURL=${file}`,
  )
  script(exports, { exports }, createRequire(file), file, dirname(file), bounded)
  return { xgrammar: exports, memoryBytes: () => memory?.buffer.byteLength ?? 0 }
}

function boundMemory(memory: Memory, most: number): void {
  const grow = memory.grow.bind(memory)
  memory.grow = (pages) => {
    if (memory.buffer.byteLength + pages * 65_536 > most)
      throw new RangeError(`A grammar may use ${most} bytes of memory.`)
    return grow(pages)
  }
}
