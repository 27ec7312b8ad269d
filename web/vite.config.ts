// Builds the dashboard into `.local/web`. Set-up runs it: `node scripts/setup.mjs --only web`.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'
import tailwindcss from '@tailwindcss/vite'
import react from '@vitejs/plugin-react'
import { defineConfig, type Plugin } from 'vite'
import { docs } from './docs-plugin/index.ts'

const here = path.dirname(fileURLToPath(import.meta.url))
// Set-up builds beside the folder that is served and swaps them, so that no half of a build is ever served.
const outDir = process.env.TUNERY_WEB_OUT ?? path.join(here, '../.local/web')

/** Smaller files gain nothing: a packet is a packet. */
const compressFrom = 1000

/** Writes NAME.br and NAME.gz, once at build instead of at every request. */
function precompress(): Plugin {
  return {
    name: 'precompress',
    apply: 'build',
    closeBundle() {
      for (const entry of readdirSync(outDir, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || !/\.(js|css|html|svg|json|jsonl|txt|webmanifest)$/.test(entry.name)) continue
        const file = path.join(entry.parentPath, entry.name)
        const bytes = readFileSync(file)
        if (bytes.length < compressFrom) continue
        writeFileSync(`${file}.gz`, gzipSync(bytes, { level: 9 }))
        writeFileSync(
          `${file}.br`,
          brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY } }),
        )
      }
    },
  }
}

export default defineConfig({
  root: here,
  plugins: [docs(path.join(here, '..')), react(), tailwindcss(), precompress()],
  assetsInclude: ['**/*.jsonl'],
  // `npx vite web` shows changes at once, over a service that runs at TUNERY_URL.
  server: {
    proxy: Object.fromEntries(
      ['/v1', '/health'].map((route) => [route, process.env.TUNERY_URL ?? 'http://127.0.0.1:8000']),
    ),
  },
  build: {
    outDir,
    emptyOutDir: true,
    // What light-dark() and the rest of the style sheet need.
    target: ['chrome123', 'firefox120', 'safari17.5'],
    // Inlined assets would be data: addresses, which the policy of the page forbids but for images.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // Read by the check of the budget: which files the first page needs.
    manifest: 'manifest.json',
    reportCompressedSize: false,
    // tests/unit/web/budget.test.ts holds the sizes.
    chunkSizeWarningLimit: 2000,
  },
})
