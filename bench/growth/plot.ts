// Plots of a sweep as one SVG: logarithmic axes, points, and the fitted line of each curve. Without fonts or scripts of
// its own; light and dark are two files, as the documentation shows one by its theme.
import { fit } from './fit.ts'
import { type Curve, exponentText, type Result } from './sweep.ts'

export type Theme = 'light' | 'dark'

const colours: Record<Theme, { text: string; faint: string; grid: string; curves: string[] }> = {
  light: {
    text: '#1f2328',
    faint: '#59636e',
    grid: '#d9dee3',
    curves: ['#1f6fd0', '#c2570c', '#0b7a5c', '#8a4bc9', '#a8325e', '#59636e'],
  },
  dark: {
    text: '#e6e9ec',
    faint: '#9aa4ae',
    grid: '#39424b',
    curves: ['#6cb1ff', '#ff9d57', '#4fd1b0', '#c79bff', '#ff8fb4', '#9aa4ae'],
  },
}
const width = 380
const area = { left: 52, right: 12, top: 30, height: 190 }
const legendRow = 17

/** One picture with a plot beside the other. */
export function plotsOf(result: Result, theme: Theme): string {
  const rows = Math.max(...result.plots.map(({ curves }) => curves.length))
  const height = area.top + area.height + 42 + rows * legendRow + 6
  const plots = result.plots.map(
    ({ title, curves }, index) =>
      `<g transform="translate(${index * width} 0)">${plot(title, result.what, curves, theme)}</g>`,
  )
  const total = width * result.plots.length
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${total}" height="${height}" viewBox="0 0 ${total} ${height}" ` +
    `font-family="system-ui,sans-serif" font-size="11.5" fill="${colours[theme].text}">\n` +
    // Readable where only this one is shown, whatever is behind it.
    `${theme === 'light' ? `<rect width="${total}" height="${height}" rx="8" fill="#fff"/>\n` : ''}` +
    `${plots.join('\n')}\n</svg>\n`
  )
}

interface Axis {
  /** Decades, or halves of them where there are few. */
  ticks: number[]
  at(value: number): number
}

function axis(values: number[], from: number, to: number): Axis {
  const low = Math.log10(Math.min(...values))
  const high = Math.log10(Math.max(...values))
  // At least a decade, so that noise does not look like growth.
  const room = Math.max(0, 1 - (high - low)) / 2 + 0.06 * Math.max(1, high - low)
  const [begin, end] = [low - room, high + room]
  const steps = end - begin > 3 ? [1] : end - begin > 1.5 ? [1, 3] : [1, 2, 5]
  const decades = Array.from({ length: Math.ceil(end) - Math.floor(begin) + 1 }, (_, i) => Math.floor(begin) + i)
  const every = Math.ceil((end - begin) / 6)
  return {
    ticks: decades
      .filter((decade) => decade % every === 0)
      .flatMap((decade) => steps.map((step) => step * 10 ** decade))
      .filter((tick) => Math.log10(tick) >= begin && Math.log10(tick) <= end),
    at: (value) => round(from + ((Math.log10(value) - begin) / (end - begin)) * (to - from)),
  }
}

const round = (value: number) => Math.round(value * 10) / 10

function plot(title: string, what: string, all: Curve[], theme: Theme): string {
  const { faint, grid, curves: palette } = colours[theme]
  const curves = all.filter(({ points }) => points.length > 0)
  const bottom = area.top + area.height
  const sizes = curves.flatMap(({ points }) => points.map(([size]) => size))
  const x = axis(sizes, area.left, width - area.right)
  const y = axis(
    curves.flatMap(({ points }) => points.map(([, value]) => value)),
    bottom,
    area.top,
  )
  const line = (x1: number, y1: number, x2: number, y2: number, rest: string) =>
    `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" ${rest}/>`
  const text = (at: number, top: number, anchor: string, content: string, fill = faint) =>
    `<text x="${at}" y="${top}" text-anchor="${anchor}" fill="${fill}">${escaped(content)}</text>`
  const parts = [
    `<text x="${area.left}" y="16" font-weight="600">${escaped(title)}</text>`,
    ...y.ticks.flatMap((tick) => [
      line(area.left, y.at(tick), width - area.right, y.at(tick), `stroke="${grid}"`),
      text(area.left - 6, y.at(tick) + 4, 'end', short(tick)),
    ]),
    ...x.ticks.flatMap((tick) => [
      line(x.at(tick), area.top, x.at(tick), bottom, `stroke="${grid}"`),
      text(x.at(tick), bottom + 15, 'middle', short(tick)),
    ]),
    text((area.left + width - area.right) / 2, bottom + 31, 'middle', what),
  ]
  for (const [index, curve] of curves.entries()) {
    const colour = palette[index % palette.length]!
    const fitted = fit(curve.points)
    const last = curve.points.at(-1)![0]
    if (fitted)
      parts.push(
        line(
          x.at(fitted.from),
          y.at(fitted.at(fitted.from)),
          x.at(last),
          y.at(fitted.at(last)),
          `stroke="${colour}" stroke-width="1.6"`,
        ),
      )
    for (const [size, value] of curve.points) parts.push(mark(index, x.at(size), y.at(value), colour))
    const top = bottom + 42 + (index + 1) * legendRow - 5
    const exponent = curve.exponent === null ? '' : `, exponent ${exponentText(curve.exponent)}`
    parts.push(mark(index, area.left, top - 4, colour))
    parts.push(text(area.left + 10, top, 'start', `${curve.name}, ${curve.unit}${exponent}`, colours[theme].text))
  }
  return parts.join('')
}

/** A shape for each curve, so that they differ without colours too. */
function mark(index: number, x: number, y: number, colour: string): string {
  const shapes = [
    `<circle cx="${x}" cy="${y}" r="3.6" fill="${colour}"/>`,
    `<path d="M${x - 3.4} ${y - 3.4}h6.8v6.8h-6.8z" fill="${colour}"/>`,
    `<path d="M${x} ${y - 4.4}l4.4 7.8h-8.8z" fill="${colour}"/>`,
    `<path d="M${x} ${y - 4.8}l4.8 4.8-4.8 4.8-4.8-4.8z" fill="${colour}"/>`,
    `<circle cx="${x}" cy="${y}" r="3" fill="none" stroke="${colour}" stroke-width="1.8"/>`,
    `<path d="M${x - 3.5} ${y - 3.5}l7 7m0-7l-7 7" stroke="${colour}" stroke-width="1.8"/>`,
  ]
  return shapes[index % shapes.length]!
}

function short(value: number): string {
  if (value >= 1e6) return `${value / 1e6}M`
  if (value >= 1e3) return `${value / 1e3}k`
  return String(Number(value.toPrecision(2)))
}

const escaped = (text: string) =>
  text.replace(/[&<>]/g, (character) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[character]!)
