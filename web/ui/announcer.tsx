// For screen readers and keyboards, in the frame of every page.
import { useRouterState } from '@tanstack/react-router'
import { useEffect, useRef, useState } from 'react'

/** Tells screen readers which page has opened: no page is loaded that would say so itself. */
export function Announcer() {
  const path = useRouterState({ select: ({ location }) => location.pathname })
  const first = useRef(path)
  const [said, setSaid] = useState('')
  useEffect(() => {
    if (path === first.current) return
    first.current = ''
    // The page's file may have to be loaded before it has a title.
    const timer = setTimeout(() => setSaid(document.title), 400)
    return () => clearTimeout(timer)
  }, [path])
  return (
    <div role="status" className="sr-only">
      {said}
    </div>
  )
}

/** The first control: a way past the navigation, to the element with the id `main`. */
export const SkipLink = () => (
  // biome-ignore lint/a11y/useValidAnchor: a link by its nature, which leaves the address alone
  <a
    href="#main"
    onClick={(event) => {
      // The address stays: its fragment may name a place in the page.
      event.preventDefault()
      document.getElementById('main')?.focus()
    }}
    className={
      'fixed top-2 left-2 z-50 -translate-y-16 rounded-md bg-accent px-4 py-2 font-medium text-on-accent ' +
      'focus:translate-y-0'
    }
  >
    Skip to the page
  </a>
)
