// Numbers, sizes, times and money as text. Locale: the browser's.
const cache = new Map<string, Intl.NumberFormat>()

function numbers(options: Intl.NumberFormatOptions): Intl.NumberFormat {
  const key = JSON.stringify(options)
  let format = cache.get(key)
  if (!format) {
    format = new Intl.NumberFormat(undefined, options)
    cache.set(key, format)
  }
  return format
}

/** What stands where a value is missing. */
export const none = '–'

/** A whole number with separators: `12,345`. */
export const formatCount = (value: number | null | undefined): string =>
  value == null ? none : numbers({ maximumFractionDigits: 0 }).format(value)

/** A count in few characters: `12.3K`. */
export const formatCompact = (value: number | null | undefined): string =>
  value == null ? none : numbers({ notation: 'compact', maximumFractionDigits: 1 }).format(value)

/** Weights of a model as their makers write them, in every language: `135M`, `1.7B`. */
export const formatParameters = (billions: number): string =>
  billions < 0.9995 ? `${Math.round(billions * 1000)}M` : `${Number(billions.toFixed(1))}B`

/** A measured number with `digits` significant digits: `0.0123`, `1.23e-7` where it would have many zeros. */
export function formatNumber(value: number | null | undefined, digits = 3): string {
  if (value == null || Number.isNaN(value)) return none
  const size = Math.abs(value)
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(digits - 1)
  return numbers({ maximumSignificantDigits: digits }).format(value)
}

const exportFormats: Record<string, string> = { gguf: 'GGUF', huggingface: 'Hugging Face', onnx: 'ONNX' }

/** What an export is: `GGUF Q4_K_M`. */
export const formatExport = ({ format, quantization }: { format: string; quantization: string | null }): string =>
  [exportFormats[format] ?? format, quantization].filter(Boolean).join(' ')

/** A share of 0 to 1: `87.5 %` in the locale's form. */
export const formatPercent = (share: number | null | undefined, digits = 0): string =>
  share == null ? none : numbers({ style: 'percent', maximumFractionDigits: digits }).format(share)

/** The same of what is in progress: whole only at its end. */
export const formatProgress = (share: number): string => formatPercent(Math.floor(share * 100) / 100)

const byteUnits = ['B', 'kB', 'MB', 'GB', 'TB'] as const

/** Decimal units, as the API's limits are: `1.2 MB`. */
export function formatBytes(bytes: number | null | undefined): string {
  if (bytes == null) return none
  let value = bytes
  let unit = 0
  while (Math.abs(value) >= 999.5 && unit < byteUnits.length - 1) {
    value /= 1000
    unit++
  }
  return `${numbers({ maximumSignificantDigits: unit === 0 ? 21 : 3 }).format(value)} ${byteUnits[unit]}`
}

/** Money by the currency's code: `$0.0042`. Small amounts keep two significant digits. */
export function formatMoney(amount: number | null | undefined, currency: string): string {
  if (amount == null) return none
  const size = Math.abs(amount)
  const fine = size > 0 && size < 0.1
  const options: Intl.NumberFormatOptions = fine
    ? { minimumFractionDigits: 2, maximumFractionDigits: Math.min(8, 1 - Math.floor(Math.log10(size))) }
    : { minimumFractionDigits: 2, maximumFractionDigits: 2 }
  try {
    return numbers({ style: 'currency', currency, currencyDisplay: 'narrowSymbol', ...options }).format(amount)
  } catch {
    // A currency of the operator's own, such as credits.
    return `${numbers(options).format(amount)} ${currency}`
  }
}

/** Seconds as `0.42 s`, `12 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`. */
export function formatDuration(seconds: number | null | undefined): string {
  if (seconds == null || Number.isNaN(seconds)) return none
  if (seconds < 0.001) return '0 s'
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`
  if (seconds < 10) return `${numbers({ maximumFractionDigits: 1 }).format(seconds)} s`
  const total = Math.round(seconds)
  if (total < 60) return `${total} s`
  const two = (value: number) => String(value).padStart(2, '0')
  if (total < 3600) return `${Math.floor(total / 60)} min ${two(total % 60)} s`
  const minutes = Math.round(total / 60)
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`
  const hours = Math.round(total / 3600)
  return `${Math.floor(hours / 24)} d ${hours % 24} h`
}

const relative = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto', style: 'long' })
const steps: [Intl.RelativeTimeFormatUnit, number][] = [
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
]

/** `3 minutes ago`, `in 2 hours`; within a minute `just now`; beyond 30 days the date. */
export function formatRelative(time: string | Date, now = Date.now()): string {
  const seconds = (new Date(time).getTime() - now) / 1000
  if (Math.abs(seconds) < 45) return seconds > 5 ? 'in a moment' : 'just now'
  if (Math.abs(seconds) > 30 * 86_400) return formatDate(time)
  const [unit, size] = steps.find(([, each]) => Math.abs(seconds) >= each * 0.9) ?? steps.at(-1)!
  return relative.format(Math.round(seconds / size), unit)
}

const dates = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium' })
const times = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })

const formatDate = (time: string | Date): string => dates.format(new Date(time))
export const formatTime = (time: string | Date): string => times.format(new Date(time))

/** `1 row`, `2 rows`. */
export const plural = (count: number, noun: string, nouns = `${noun}s`): string =>
  `${formatCount(count)} ${count === 1 ? noun : nouns}`
