import { groups } from 'virtual:docs'
import { Link, useRouterState } from '@tanstack/react-router'
import { Braces, ChevronRight } from 'lucide-react'

const entryClass =
  'focus-inset flex min-h-8 items-center gap-2.5 rounded-md px-2.5 py-1 text-muted hover:bg-hover hover:text-ink ' +
  'any-pointer-coarse:min-h-11'
const activeProps = { className: 'bg-accent-soft! text-accent-ink! font-medium' }
/** Folded until one of its pages is open: few people read more than one. */
const folded = 'Decisions'

/** Every page, in the groups of docs/README.md. */
export function Navigation({ onNavigate }: { onNavigate?: () => void }) {
  const path = useRouterState({ select: ({ location }) => location.pathname })
  return (
    <nav aria-label="Docs" className="px-2 py-4">
      <ul className="grid gap-0.5">
        <li>
          <Link
            to="/docs/api"
            activeOptions={{ exact: true }}
            activeProps={activeProps}
            onClick={onNavigate}
            className={entryClass}
          >
            <Braces aria-hidden className="size-4.5 shrink-0" />
            API reference
          </Link>
        </li>
      </ul>
      {groups.map((group) => {
        const list = (
          <ul className="grid gap-0.5">
            {group.pages.map(({ slug, title }) => (
              <li key={slug}>
                <Link
                  to="/docs/$"
                  params={{ _splat: slug }}
                  activeProps={activeProps}
                  onClick={onNavigate}
                  className={entryClass}
                >
                  {title}
                </Link>
              </li>
            ))}
          </ul>
        )
        if (group.title !== folded)
          return (
            <section key={group.title} className="mt-4">
              <h2 className="px-2.5 pb-1 text-sm font-semibold">{group.title}</h2>
              {list}
            </section>
          )
        return (
          <details key={group.title} className="group/folded mt-4" open={path.startsWith('/docs/decisions/')}>
            <summary
              className={
                'focus-inset flex list-none items-center gap-1 rounded-md px-2.5 pb-1 text-sm font-semibold ' +
                '[&::-webkit-details-marker]:hidden'
              }
            >
              {group.title}
              <ChevronRight
                aria-hidden
                className="size-4 transition-transform duration-100 group-open/folded:rotate-90"
              />
            </summary>
            {list}
          </details>
        )
      })}
    </nav>
  )
}
