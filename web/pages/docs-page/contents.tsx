import type { DocContent } from 'virtual:docs'
import { useEffect, useState } from 'react'
import { classes } from '../../lib/classes.ts'

/** The headings of the page, beside it where there is room, with the one that is being read. */
export function Contents({ headings }: { headings: DocContent['headings'] }) {
  const current = useCurrent(headings)
  if (headings.length < 2) return null
  return (
    <aside className="sticky top-13 max-h-[calc(100dvh-3.25rem)] w-58 shrink-0 overflow-y-auto py-8 pr-4 max-xl:hidden">
      <nav aria-label="On this page">
        <h2 className="mb-1.5 pl-3 text-sm font-semibold">On this page</h2>
        <ul className="border-l border-line text-sm">
          {headings.map(({ id, text, level }) => (
            <li key={id}>
              <a
                href={`#${id}`}
                aria-current={id === current ? 'location' : undefined}
                className={classes(
                  'focus-inset -ml-px block border-l-2 py-1 pr-2',
                  level > 2 ? 'pl-6' : 'pl-3',
                  id === current ? 'border-accent-ink text-ink' : 'border-transparent text-muted hover:text-ink',
                )}
              >
                {text}
              </a>
            </li>
          ))}
        </ul>
      </nav>
    </aside>
  )
}

/** Below the header a heading counts as read. */
const line_px = 120

/** The last heading above the line. */
function useCurrent(headings: DocContent['headings']): string | undefined {
  const [current, setCurrent] = useState<string>()
  useEffect(() => {
    let frame = 0
    const look = () => {
      frame = 0
      const above = headings.filter(({ id }) => {
        const top = document.getElementById(id)?.getBoundingClientRect().top
        return top !== undefined && top < line_px
      })
      setCurrent(above.at(-1)?.id)
    }
    const onScroll = () => {
      frame ||= requestAnimationFrame(look)
    }
    look()
    addEventListener('scroll', onScroll, { passive: true })
    return () => {
      removeEventListener('scroll', onScroll)
      cancelAnimationFrame(frame)
    }
  }, [headings])
  return current
}
