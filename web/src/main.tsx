// What the dashboard looks like, and what it does.

import "@xterm/xterm/css/xterm.css";

import "./style/base.css";
import "./style/parts.css";
import "./style/session.css";
import "./style/session_parts.css";

import "./app";
