// Loads XGrammar, a single script compiled to WebAssembly. For worker threads only: all its functions block.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname } from 'node:path'

interface Disposable {
  dispose(): void
}
export type CompiledGrammar = Disposable
export interface Matcher extends Disposable {
  acceptToken(token: number): boolean
  getNextTokenBitmask(): Promise<Int32Array>
  isTerminated(): boolean
  reset(): void
}
interface Compiler extends Disposable {
  compileGrammar(grammar: Disposable): Promise<CompiledGrammar>
}

export interface XGrammar {
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

// Node's types lack WebAssembly; these are the parts in use.
interface Memory {
  readonly buffer: ArrayBuffer
  grow(pages: number): number
}
interface Instantiated {
  instance: { exports: Record<string, unknown> }
}
interface Wasm {
  Memory: new () => Memory
  instantiate(code: unknown, imports: unknown): Promise<Instantiated>
}
const { WebAssembly: wasm } = globalThis as unknown as { WebAssembly: Wasm }

/**
 * Loads XGrammar with a separate memory that may grow to `memory_bytes`. An allocation beyond that aborts it
 * permanently.
 */
export function loadXGrammar(memory_bytes: number): { xgrammar: XGrammar; memoryBytes: () => number } {
  const require = createRequire(import.meta.url)
  const file = require.resolve('@mlc-ai/web-xgrammar')
  let memory: Memory | undefined
  // The script does not export its memory; intercept its creation to limit and measure it.
  const bounded = Object.create(wasm, {
    instantiate: {
      value: async (code: unknown, imports: unknown) => {
        const instantiated = await wasm.instantiate(code, imports)
        memory = Object.values(instantiated.instance.exports).find((one) => one instanceof wasm.Memory)
        if (memory) boundMemory(memory, memory_bytes)
        return instantiated
      },
    },
  })
  // The package claims to be an ES module but is a CommonJS script, so neither import nor require can load it.
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
